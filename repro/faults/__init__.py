"""Faults that can be injected into a run, one fault class per file."""
