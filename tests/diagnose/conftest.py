"""Fixtures for the tests of diagnosis."""

from tests.exporters.conftest import journal

__all__ = ["journal"]
