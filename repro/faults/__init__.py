"""Faults that can be injected into a run, one class a file."""
