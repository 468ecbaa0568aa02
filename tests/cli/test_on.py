"""``hicache-dbg on``: what is said when it ends before the tracing does."""

from collections.abc import Iterator

import pytest

from hicache_dbg.tracer.cli import on
from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.switch.messages import Ask, Reply


def test_who_interrupts_is_told_that_the_process_is_traced_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends the command alone: the process detaches when its time is over, or at ``off``."""

    def ask(_pid: int, _request: Ask) -> Iterator[Reply]:
        yield Reply(done=True, text="tracing process 4711 for 60 s")
        raise KeyboardInterrupt

    monkeypatch.setattr(on, "ask", ask)
    assert main(["on", "--pid", "4711", "--for", "60s"]) == 130
    *_, told, end = filter(
        None, capsys.readouterr().err.splitlines()
    )  # old Click ends the line first
    assert "process 4711 may still be traced" in told
    assert "hicache-dbg off --pid 4711" in told
    assert end == "hicache-dbg: interrupted"
