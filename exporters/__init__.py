"""Sinks and report writers, one file each. They know events, never pools."""
