"""JSON on standard output, the same from every verb."""

from typing import Any

import msgspec
import typer

__all__ = ["print_json"]


def print_json(data: Any) -> None:
    """Print ``data`` as indented JSON; in UTF-8, as JSON is, whatever the terminal's encoding."""
    typer.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))
