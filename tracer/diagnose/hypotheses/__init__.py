"""One small file a hypothesis; each holds one ``HYPOTHESIS``."""
