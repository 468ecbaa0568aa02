"""Attachment to released SGLang versions: their host pools, and whatever moves bytes."""
