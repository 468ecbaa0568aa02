"""Prefill to decode: a request's pages go from one process's pools into another's."""
