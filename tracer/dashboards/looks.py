"""How numbers of each kind are shown, the same on every board."""

from hicache_dbg.tracer.dashboards.spec import Look, Step

__all__ = [
    "BAD_IF_ANY",
    "BYTES",
    "BYTES_PER_SECOND",
    "COUNT",
    "FACT",
    "LEVEL",
    "ODD_IF_ANY",
    "PER_SECOND",
    "SECONDS_A_SECOND",
    "SHARE",
]

#: A count in a table.
COUNT = Look(decimals=0)
#: A number that is neither good nor bad.
FACT = Look(decimals=0, steps=(Step(None, "blue"),))
BAD_IF_ANY = Look(decimals=0, steps=(Step(None, "green"), Step(1, "red")))
ODD_IF_ANY = Look(decimals=0, steps=(Step(None, "green"), Step(1, "yellow")))
#: A whole number over time.
LEVEL = Look(decimals=0, least=0)
PER_SECOND = Look(unit="ops", least=0)
BYTES = Look(unit="bytes", least=0)
BYTES_PER_SECOND = Look(unit="binBps", least=0)
SHARE = Look(unit="percentunit", least=0, most=1)
#: A share of time that may exceed 100 %, because several threads add to it.
SECONDS_A_SECOND = Look(unit="percentunit", least=0)
