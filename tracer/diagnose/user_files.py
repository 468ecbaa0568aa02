"""Load a user's hypothesis from a Python file, which is executed because its user named it."""

import importlib.util
from pathlib import Path

from hicache_dbg.tracer.diagnose.hypothesis import Hypothesis

__all__ = ["HypothesisFileError", "hypothesis_from"]


class HypothesisFileError(Exception):
    """A file holds no usable hypothesis; the message says why and what to do."""


def hypothesis_from(path: Path) -> Hypothesis:
    """Return the ``HYPOTHESIS`` defined in the Python file at ``path``.

    Raises:
        HypothesisFileError: the file cannot be run, or defines no :class:`Hypothesis` of that name.
    """
    if not path.is_file():
        raise HypothesisFileError(f"there is no file {path}: expected a Python file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise HypothesisFileError(f"{path} is no Python file: expected a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise HypothesisFileError(f"{path} failed: {type(error).__name__}: {error}") from error
    found = getattr(module, "HYPOTHESIS", None)
    if not isinstance(found, Hypothesis):
        raise HypothesisFileError(
            f"{path} has no HYPOTHESIS: expected HYPOTHESIS = Hypothesis(...) "
            "as in hicache_dbg.tracer.diagnose.hypotheses"
        )
    return found
