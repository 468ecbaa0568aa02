"""Attachments: one file a system. Each finds where bytes cross a tier and tells the probe."""
