"""Tests in released/ run with a released SGLang on the path; see test_released.py."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("sglang") else ["released"]
