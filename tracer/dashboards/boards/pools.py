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
    metric,
    pool_metric,
    rate,
)

__all__ = ["POOLS"]

PAGES = pool_metric("pool_pages")
USED = pool_metric("pool_pages", 'state="used"')
GEOMETRY = pool_metric("pool_geometry_info")
LOOKUPS = metric("lookup_pages_total")
FULL = Look(
    unit="percentunit",
    decimals=1,
    steps=(Step(None, "green"), Step(0.9, "yellow"), Step(0.98, "red")),
    least=0,
    most=1,
)


ONE = "instance, pool, component, rank"


def _values(label: str) -> str:
    """Return the number of distinct values of ``label`` at a component's ends: 1 if they agree."""
    return f"count by ({ONE}) (count by ({ONE}, {label}) ({GEOMETRY}))"


def _agreement() -> str:
    """Return 0 if a component has only one end, 1 if its ends agree in every size, else more."""
    labels = ("slot_bytes", "page_bytes", "slots_per_page", "dtype", "layers")
    return " * ".join([f"({_values('tier')} >= bool 2)", *map(_values, labels)])


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
                    "The share of each tier's pages that are in use now. "
                    "Metric: hicache_dbg_pool_pages, read off the allocators at each scrape.",
                    (Query(f"sum by (tier) ({USED}) / sum by (tier) ({PAGES})", "{{tier}}"),),
                    width=12,
                    height=6,
                    look=FULL,
                ),
                Panel(
                    Kind.STAT,
                    "Pages in all",
                    "Pages of each tier, in use or not, over all pools. Metric: hicache_dbg_pool_pages.",
                    (Query(f"sum by (tier) ({PAGES})", "{{tier}}"),),
                    width=12,
                    height=6,
                    look=FACT,
                ),
                Panel(
                    Kind.LINES,
                    "Pages by tier and state",
                    "Pages of the chosen pools. A host tier that only ever fills is written and never "
                    "evicted from. Metric: hicache_dbg_pool_pages.",
                    (Query(f"sum by (tier, state) ({PAGES})", "{{tier}} {{state}}"),),
                    look=Look(stacked=True, least=0),
                ),
                Panel(
                    Kind.LINES,
                    "Share in use, by pool and tier",
                    "Pools of one group fill together; one that does not is a sidecar that is not carried. "
                    "Metric: hicache_dbg_pool_pages.",
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
                    "0 where they are not pinned, and copies are slow. Metric: hicache_dbg_pool_pinned_bytes.",
                    (
                        Query(
                            f"sum by (pool, rank) ({pool_metric('pool_pinned_bytes')})",
                            "{{pool}} rank {{rank}}",
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
                    "beforehand (hit) or why not. Metric: hicache_dbg_lookup_pages_total.",
                    (Query(f"sum by (tier, end) ({rate(LOOKUPS)})", "{{tier}} {{end}}"),),
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
                    "a page, dtype and number of layers; 'one end only' where a component has no mirror. "
                    "Metric: hicache_dbg_pool_geometry_info, read off the tensors.",
                    (Query(_agreement(), "{{pool}}.{{component}} rank {{rank}}"),),
                    width=24,
                    height=6,
                    look=Look(
                        decimals=0,
                        steps=(Step(None, "red"),),
                        readings=(
                            Reading("0", "one end only", "red"),
                            Reading("1", "agree", "green"),
                        ),
                    ),
                ),
                Panel(
                    Kind.TABLE,
                    "Geometry of both ends",
                    "One line an end of a mirror. The lines of one component must agree in everything but "
                    "class, layout, device and pages; bytes a slot and a page are the tensor's own. "
                    "Metric: hicache_dbg_pool_geometry_info.",
                    (Query(GEOMETRY, "ends"),),
                    width=24,
                    height=10,
                    columns=(
                        *("pool", "component", "tier", "slot_bytes", "page_bytes"),
                        *("slots_per_page", "dtype", "layers", "pages"),
                        *("layout", "class", "device", "rank"),
                    ),
                    look=COUNT,
                ),
            ),
        ),
    ),
)
