"""Which paths do bytes take between the tiers, how many bytes, and how fast?"""

from hicache_dbg.tracer.dashboards.looks import (
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    FACT,
    ODD_IF_ANY,
    PER_SECOND,
)
from hicache_dbg.tracer.dashboards.spec import (
    Board,
    Kind,
    Look,
    Panel,
    Query,
    Row,
    Step,
    gpu_metric,
    level,
    pool_metric,
    rate,
    rates,
    ratio,
    total,
    totals,
)

__all__ = ["PATHS"]

COPIES = pool_metric("copies_total")
COPIED = pool_metric("copied_bytes_total")
GRANULAR = pool_metric("copies_total", 'token_granular="True"')
SECONDS = pool_metric("copy_duration_seconds_sum")
BUCKETS = pool_metric("copy_duration_seconds_bucket")
PATH = "pool, op, layout, token_granular"
DEVICE_AND_HOST = pool_metric("copied_bytes_total", 'src=~"device|host"', 'dst=~"device|host"')


def _quantile(share: float) -> str:
    return f"histogram_quantile({share}, sum by (le, op) ({rate(BUCKETS)}))"


PATHS = Board(
    uid="hicache-dbg-paths",
    title="hicache-dbg / Paths",
    description="Copies by pool, op, layout and branch; bytes, bandwidth and durations.",
    rows=(
        Row(
            "Which paths were taken",
            (
                Panel(
                    Kind.STAT,
                    "Token-granular copies",
                    "Copies that addressed single slots of a page-indexed pool, since each process started. "
                    "0 answers 'was that path ever taken' with no, if the copies beside it are not 0.",
                    (
                        total(GRANULAR, "token-granular"),
                        total(COPIES, "all copies", look=FACT),
                    ),
                    width=8,
                    height=5,
                    look=ODD_IF_ANY,
                ),
                Panel(
                    Kind.STAT,
                    "Bytes moved",
                    "By all operations, since each process started.",
                    (totals("op", COPIED),),
                    width=16,
                    height=5,
                    look=Look(unit="bytes", decimals=1, steps=(Step(None, "blue"),)),
                ),
                Panel(
                    Kind.TABLE,
                    "Paths",
                    "One line a path with its copies and bytes since each process started; a path with 0 "
                    "exists and was not taken.",
                    (
                        totals(PATH, COPIES, "copies"),
                        totals(PATH, COPIED, "bytes", look=Look(unit="bytes")),
                    ),
                    width=24,
                    height=9,
                    columns=("pool", "op", "token_granular", "layout"),
                    sort="copies",
                    look=COUNT,
                ),
            ),
        ),
        Row(
            "How much",
            (
                Panel(
                    Kind.LINES,
                    "Copies by path",
                    "Operations a second, by pool, op, layout and whether single slots were addressed.",
                    (
                        rates(
                            PATH,
                            COPIES,
                            "{{pool}} {{op}} {{layout}} token_granular={{token_granular}}",
                        ),
                    ),
                    look=PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Bytes by pool and op",
                    "Bytes moved a second.",
                    (rates("pool, op", COPIED),),
                    look=BYTES_PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Between device and host, against the bus",
                    "Bytes a second that copies moved between device and host, and what the GPU counts on "
                    "PCIe in all. Ours above the bus's: the copies do not cross it. The bus is read for 20 ms "
                    "a scrape, so compare over minutes.",
                    (
                        rates("src, dst", DEVICE_AND_HOST, "{{src}} to {{dst}}"),
                        level(
                            "direction", gpu_metric("pcie_bytes_per_second"), "PCIe {{direction}}"
                        ),
                    ),
                    look=BYTES_PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Bytes a copy",
                    "The mean size of a copy. Many small ones where there were few large ones are a sign of "
                    "a slow fallback.",
                    (ratio("pool, op", COPIED, COPIES),),
                    look=BYTES,
                ),
            ),
        ),
        Row(
            "How fast",
            (
                Panel(
                    Kind.HEATMAP,
                    "Durations",
                    "How many copies took how long; a second band is a second path, or another reader of "
                    "the bus. Exemplars lead to traces where there are any.",
                    (rates("le", BUCKETS, exemplar=True),),
                    height=9,
                    look=Look(unit="s"),
                ),
                Panel(
                    Kind.LINES,
                    "Durations, median and 99th percentile",
                    "By op, from the buckets of the histogram. No line where nothing was copied.",
                    (
                        Query(_quantile(0.5), "{{op}} p50"),
                        Query(_quantile(0.99), "{{op}} p99", exemplar=True),
                    ),
                    height=9,
                    look=Look(unit="s", least=0),
                ),
                Panel(
                    Kind.LINES,
                    "Bandwidth while copying",
                    "Bytes moved for each second that copies took: how fast a copy is, not how much is "
                    "copied.",
                    (ratio("pool, op", COPIED, SECONDS),),
                    look=BYTES_PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Copies in flight",
                    "Seconds of copying a second: 1 is one copy running all the time.",
                    (rates("op", SECONDS),),
                    look=Look(least=0),
                ),
            ),
        ),
    ),
)
