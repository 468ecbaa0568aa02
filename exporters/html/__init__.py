"""A diagnosis as one self-contained page."""
