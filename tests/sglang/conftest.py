"""Tests against SGLang as released run where a release is on the path; see test_released.py."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("sglang") else ["released"]
