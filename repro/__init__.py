"""Workloads, fault injection, the model and the session oracle."""
