"""One small file per hypothesis; each defines one ``HYPOTHESIS``."""
