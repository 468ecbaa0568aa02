"""Attachments to systems that move pages: where bytes cross a tier, they tell the probe."""
