"""``hicache-dbg off``: switch tracing off in a running process and print its report."""

from typing import Annotated

import typer

from hicache_dbg.tracer.cli.json_output import AsJson
from hicache_dbg.tracer.cli.on import finish, replies
from hicache_dbg.tracer.switch.messages import Ask

__all__ = ["command"]


def command(
    pid: Annotated[int, typer.Option(help="Id of the process in which tracing was switched on.")],
    as_json: AsJson = False,
) -> None:
    """Detach from a running process and print the report of what was traced.

    Example: hicache-dbg off --pid 4711
    """
    for reply in replies(pid, Ask(do="off")):
        finish(reply, as_json=as_json)
