"""``hicache-dbg schema``: the event fields as JSON Schema."""

import msgspec
import typer

from hicache_dbg.tracer.events import SCHEMA_VERSION, Copied, Finding, Health, Started

__all__ = ["command"]


def command() -> None:
    """Print the JSON Schema of every event, as it stands in recordings.

    Example: hicache-dbg schema > events.schema.json
    """
    kinds = (Started, Copied, Finding, Health)
    references, components = msgspec.json.schema_components(kinds)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"hicache-dbg events, schema version {SCHEMA_VERSION}",
        "anyOf": list(references),
        "$defs": components,
    }
    text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
    typer.echo(text)
