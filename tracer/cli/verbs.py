"""The verbs, imported only when called: ``--help`` must not wait for torch."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from hicache_dbg.tracer.cli.exits import USAGE, CommandError

__all__ = ["HELP", "VERBS", "Group", "Verb", "VerbGroup"]


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: its line in the list of verbs, and where its command is.

    Its module holds a ``command``, or an ``app`` if the verb has subcommands.
    """

    summary: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self, name: str) -> Any:
        """Import the verb called ``name`` and build its command."""
        module = importlib.import_module(f"hicache_dbg.tracer.cli.{name}")
        if hasattr(module, "app"):
            return _named(name, typer.main.get_command(module.app))
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        alone.command(name, context_settings={**HELP, **self.settings})(module.command)
        return typer.main.get_command(alone)


HELP = {"help_option_names": ["-h", "--help"]}

#: In the order in which a user needs them.
VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "repro": Verb("Run agent sessions through a tiered cache and say what was corrupted."),
        "diagnose": Verb("Read recordings or the journal and judge every possible cause."),
        "run": Verb(
            "Run a command with tracing on.",
            # What follows the command's name is the command's own, even if it looks like ours.
            {"allow_extra_args": True, "allow_interspersed_args": False},
        ),
        "on": Verb("Switch tracing on in a running process (started with HICACHE_DBG=armed)."),
        "off": Verb("Switch tracing off again and print what it saw."),
        "logs": Verb("Query the journal for copies and findings."),
        "doctor": Verb("Check what works on this machine; --sglang: what attaches to SGLang."),
        "bundle": Verb("Pack recordings and versions for a colleague, without contents or ids."),
        "dashboards": Verb("Export, check and preview Grafana dashboards and Prometheus rules."),
        "ab": Verb("Repeat one run under several settings and compare."),
        "selftest": Verb("Inject every fault and check that each is found and named correctly."),
        "faults": Verb("List the fault classes and the faults that can be injected."),
        "bench": Verb("Measure what tracing costs on this machine, as ratios."),
        "schema": Verb("Print the JSON Schema of events and reports."),
    }
)


class Group(TyperGroup):
    """A command that needs a verb. Without one it shows its help, and exits 2 with every version of Click."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments, if there are any."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(USAGE)
        return super().parse_args(ctx, args)


class VerbGroup(Group):
    """The command group: lists :data:`VERBS` without imports, and imports the one called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """Return every verb, in order."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's signature
        """Return a stub with the verb's name and summary, as the list of verbs shows it."""
        verb = VERBS.get(cmd_name)
        return verb and TyperCommand(cmd_name, help=verb.summary, rich_markup_mode="rich")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import and return the command that is called."""
        name = args[0]
        verb = VERBS.get(name)
        if verb is not None:
            return name, verb.load(name), args[1:]
        if name.startswith("-"):  # an unknown option
            return super().resolve_command(ctx, args)
        near = get_close_matches(name, VERBS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise CommandError(f"no such command {name!r}: expected one of {', '.join(VERBS)}{meant}")


def _named(name: str, command: Any) -> Any:
    command.name = name
    return command
