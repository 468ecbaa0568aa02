"""Workloads, fault injection, the models and the session oracle."""
