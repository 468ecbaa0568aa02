"""Faults that can be injected into a run, one a file."""
