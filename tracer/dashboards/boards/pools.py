"""How full are the pools, and do the two ends of each mirror agree in geometry?"""

from hicache_dbg.tracer.dashboards.looks import BYTES, COUNT, FACT, SHARE
from hicache_dbg.tracer.dashboards.spec import (
    Board,
    Kind,
    Look,
    Panel,
    Query,
    Reading,
    Row,
    Step,
    level,
    metric,
    pool_metric,
    rates,
)

__all__ = ["POOLS"]

PAGES = pool_metric("pool_pages")
USED = pool_metric("pool_pages", 'state="used"')
#: Of processes that share files, a geometry that is over stays as 0.
GEOMETRY = f"({pool_metric('pool_geometry_info')} > 0)"
LOOKUPS = metric("lookup_pages_total")
#: A cache that has run for a while is full: no reason for a colour.
FULL = Look(unit="percentunit", decimals=1, steps=(Step(None, "blue"),), least=0, most=1)

ONE = "instance, pool, component, rank"
PART = "pool, component"
#: What tells two geometries apart. Each rank has a device of its own.
SHAPE = (
    *("pool", "component", "tier", "slot_bytes", "page_bytes"),
    *("slots_per_page", "dtype", "layers", "pages", "layout", "class"),
)


def _values(label: str) -> str:
    """Return the number of distinct values of ``label`` at a component's ends: 1 if they agree."""
    return f"count by ({ONE}) (count by ({ONE}, {label}) ({GEOMETRY}))"


def _agreement() -> str:
    """Return 1 if a component's ends agree in every size on every rank.

    Return 2 if they do not on some rank, 0 if there is only one end there.
    """
    labels = ("slot_bytes", "page_bytes", "slots_per_page", "dtype", "layers")
    every = " * ".join([f"({_values('tier')} >= bool 2)", *map(_values, labels)])
    return f"clamp_max(max by ({PART}) ({every}), 2) > 1 or min by ({PART}) ({every})"


POOLS = Board(
    uid="hicache-dbg-pools",
    title="hicache-dbg / Pools",
    description="Pages by tier and state, and the geometry of both ends of every mirror.",
    rows=(
        Row(
            "Pages",
            (
                Panel(
                    Kind.STAT,
                    "Pages in use",
                    "The share of each tier's pages that are in use now. What is cached is in use, so a "
                    "cache that has run for a while is full. Read off the allocators at each scrape.",
                    (Query(f"sum by (tier) ({USED}) / sum by (tier) ({PAGES})", "{{tier}}"),),
                    width=12,
                    height=6,
                    look=FULL,
                ),
                Panel(
                    Kind.STAT,
                    "Pages in all",
                    "Pages of each tier, in use or not, over all pools.",
                    (level("tier", PAGES),),
                    width=12,
                    height=6,
                    look=FACT,
                ),
                Panel(
                    Kind.LINES,
                    "Pages by tier and state",
                    "Pages of the chosen pools. A host tier that only ever fills is written and never "
                    "evicted from.",
                    (level("tier, state", PAGES),),
                    look=Look(stacked=True, least=0),
                ),
                Panel(
                    Kind.LINES,
                    "Share in use, by pool and tier",
                    "Pools of one group fill together; one that does not is a sidecar that is not carried.",
                    (
                        Query(
                            f"sum by (pool, tier) ({USED}) / sum by (pool, tier) ({PAGES})",
                            "{{pool}} {{tier}}",
                        ),
                    ),
                    look=SHARE,
                ),
                Panel(
                    Kind.LINES,
                    "Pinned host memory",
                    "What the host tensors of each pool hold pinned, as they were when the tracer attached; "
                    "0 where they are not pinned, and copies are slow.",
                    (
                        level(
                            "pool, instance, rank",
                            pool_metric("pool_pinned_bytes"),
                            "{{pool}} {{instance}} rank {{rank}}",
                        ),
                    ),
                    width=24,
                    look=BYTES,
                ),
            ),
        ),
        Row(
            "Lookups",
            (
                Panel(
                    Kind.LINES,
                    "Pages asked for, by tier and what became of them",
                    "Pages a second, each counted once when its reader lets go: hits of the device and the "
                    "host; host pages for which the device had no room, whose load failed, or that were left "
                    "unused; pages that nobody had. Beside them, with storage, what it gave to the host "
                    "beforehand (hit) or why not.",
                    (rates("tier, end", LOOKUPS),),
                    width=24,
                    look=Look(least=0),
                ),
            ),
        ),
        Row(
            "Geometry",
            (
                Panel(
                    Kind.STAT,
                    "Do the two ends agree",
                    "For each component of each pool: whether both ends have one slot size, page size, slots "
                    "a page, dtype and number of layers, on every rank; 'one end only' where a component has "
                    "no mirror. The table below and the rank's variable tell where.",
                    (Query(_agreement(), "{{pool}}.{{component}}"),),
                    width=24,
                    height=6,
                    look=Look(
                        decimals=0,
                        steps=(Step(None, "red"),),
                        readings=(
                            Reading("0", "one end only", "red"),
                            Reading("1", "agree", "green"),
                            Reading("2", "differ", "red"),
                        ),
                    ),
                ),
                Panel(
                    Kind.TABLE,
                    "Geometry of both ends",
                    "One line a geometry, with the number of ranks that have it: a rank that differs has a line "
                    "of its own. The lines of one component must agree in everything but class, layout and "
                    "pages; bytes a slot and a page are the tensor's own.",
                    (Query(f"count by ({', '.join(SHAPE)}) ({GEOMETRY})", "ranks"),),
                    width=24,
                    height=10,
                    columns=SHAPE,
                    look=COUNT,
                ),
            ),
        ),
    ),
)
