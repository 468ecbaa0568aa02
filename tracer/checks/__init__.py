"""Detectors: each returns findings; none prints, logs or raises."""
