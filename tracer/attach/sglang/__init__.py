"""Attachment to SGLang as released: its host pools, whatever moves bytes through them."""
