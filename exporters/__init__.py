"""Sinks: one file each. They know events, never pools."""
