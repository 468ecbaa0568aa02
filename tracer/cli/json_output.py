"""Print JSON on standard output, in the same form from every verb."""

from typing import Annotated, Any

import msgspec
import typer

__all__ = ["AsJson", "print_json"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
"""The switch that every verb has."""


def print_json(data: Any) -> None:
    """Print ``data`` as indented JSON, in UTF-8 whatever the terminal's encoding."""
    typer.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))
