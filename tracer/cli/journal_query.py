"""A query of the journal: what is asked, and the journalctl call that asks it."""

from dataclasses import dataclass

from hicache_dbg.exporters.fields import IDENTIFIER

__all__ = ["ANY", "Query"]

#: Stands for every class of findings.
ANY = "any"


@dataclass(frozen=True, slots=True)
class Query:
    """A journal query; values of one field are alternatives, and all given fields must match."""

    pools: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    rank: int | None = None
    since: str = ""
    until: str = ""
    namespace: str = ""
    follow: bool = False
    paths: bool = False
    output: str = "cat"

    def journalctl(self) -> list[str]:
        """Return the arguments of the journalctl call, starting with the program's name."""
        options = ["journalctl", "-o", self.output, "-t", IDENTIFIER]
        if self.output == "json":
            options.append("--all")  # else a value of more than 4096 bytes is null
        for name, value in (
            ("--namespace", self.namespace),
            ("--since", self.since),
            ("--until", self.until),
        ):
            if value:
                options.append(f"{name}={value}")
        if self.follow:
            options.append("--follow")
        return options + self._matches()

    def _matches(self) -> list[str]:
        event = "copied" if self.paths else "finding" if ANY in self.findings else ""
        classes = () if event else self.findings
        rank = () if self.rank is None else (str(self.rank),)
        wanted = {
            "HICACHE_EVENT": (event,) if event else (),
            "HICACHE_FINDING": classes,
            "HICACHE_POOL": self.pools,
            "HICACHE_OP": self.ops,
            "HICACHE_RANK": rank,
        }
        return [f"{name}={value}" for name, values in wanted.items() for value in values]
