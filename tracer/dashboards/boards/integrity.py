"""Does the cache keep every byte, and how much of it was checked?"""

from hicache_dbg.tracer.dashboards.looks import BAD_IF_ANY, COUNT, FACT, ODD_IF_ANY, SHARE
from hicache_dbg.tracer.dashboards.spec import (
    RETURNING,
    Board,
    Kind,
    Look,
    Panel,
    Query,
    Reading,
    Row,
    Step,
    largest,
    metric,
    pool_metric,
    rate,
    rates,
    ratio,
    seen,
    total,
)

__all__ = ["INTEGRITY"]

BAD = pool_metric("tiles_total", 'result="mismatched"')
SKIPPED = pool_metric("tiles_total", 'result="skipped"')
BACK = pool_metric("tiles_total", RETURNING)
BACK_COMPARED = pool_metric("tiles_total", RETURNING, 'result=~"verified|mismatched"')
FINDINGS = pool_metric("findings_total")
OUTCOME_COLORS = (
    ("verified", "green"),
    ("witnessed", "blue"),
    ("mismatched", "red"),
    ("skipped", "yellow"),
)
CHECKED = Look(
    unit="percentunit",
    decimals=1,
    steps=(Step(None, "red"), Step(0.5, "yellow"), Step(0.99, "green")),
    readings=(
        Reading("0", "not checked", "red"),
        Reading("-1", "nothing came back", "blue"),
    ),
    least=0,
    most=1,
)


def _share_seen() -> str:
    """Return the share of returned tiles that were compared; -1 if none returned.

    Not NaN, which a panel may show as no data.
    """
    compared, moved = (f"sum({seen(selector)})" for selector in (BACK_COMPARED, BACK))
    return f"{compared} / ({moved} > 0) or {moved} * 0 - 1"


def _state_of_pools() -> str:
    """Return the expression of each pool's state.

    0 nothing came back, 1 nothing was checked, 2 part of it was checked, 3 all of it was checked, 4
    a mismatch.
    """
    moved = f"sum by (pool) ({rate(BACK)})"
    checked = f"sum by (pool) ({rate(BACK_COMPARED)})"
    grade = f"({moved} > bool 0) * (1 + ({checked} > bool 0) + ({checked} >= bool 0.999 * {moved}))"
    return f"(sum by (pool) ({rate(BAD)}) > 0) * 0 + 4 or {grade}"


def _tiles(result: str) -> str:
    """Return the tiles with one result, by pool and op."""
    selector = pool_metric("tiles_total", f'result="{result}"')
    return f"sum by (pool, op) ({seen(selector)})"


def _findings() -> str:
    """Return the findings with, as a label, the command that shows them."""
    found = largest("class, pool, instance, rank", FINDINGS)
    for name, option in (
        ("class", "hicache-dbg logs --finding"),
        ("pool", "--pool"),
        ("rank", "--rank"),
    ):
        found = f'label_replace({found}, "by_{name}", "{option} $1", "{name}", "(.+)")'
    return f'label_join({found}, "command", " ", "by_class", "by_rank", "by_pool")'


INTEGRITY = Board(
    uid="hicache-dbg-integrity",
    title="hicache-dbg / Integrity",
    description="Tiles by what is known of them, the share that was checked, and findings by class.",
    rows=(
        Row(
            "Is what came back right",
            (
                Panel(
                    Kind.STAT,
                    "Mismatched, and of what share that was looked for",
                    "Tiles whose bytes came back different, beside the share of the returning tiles "
                    "that was compared at all: no mismatch among unchecked tiles says nothing. Counts since "
                    "each process started. 'nothing came back': no load, fetch or recv yet; 'not checked': "
                    "they ran and nothing was compared; 'no data': nothing is scraped.",
                    (
                        total(BAD, "mismatched tiles", look=BAD_IF_ANY),
                        Query(_share_seen(), "share checked", look=CHECKED),
                        total(BACK, "tiles that came back", look=FACT),
                    ),
                    width=12,
                    height=5,
                ),
                Panel(
                    Kind.STAT,
                    "Findings",
                    "Everything that a check found wrong, of any class, since each process started.",
                    (total(FINDINGS, "findings"),),
                    width=4,
                    height=5,
                    look=BAD_IF_ANY,
                ),
                Panel(
                    Kind.STAT,
                    "Ranks that report",
                    "Ranks whose tracer is scraped now. 'no data' here means that every other panel's "
                    "emptiness says nothing.",
                    (Query(f"count({metric('queue_depth')})", "ranks"),),
                    width=4,
                    height=5,
                    look=FACT,
                ),
                Panel(
                    Kind.STAT,
                    "Tiles skipped",
                    "Tiles that moved and were neither compared nor witnessed, since each process started; "
                    "the reasons are below.",
                    (total(SKIPPED, "skipped"),),
                    width=4,
                    height=5,
                    look=ODD_IF_ANY,
                ),
                Panel(
                    Kind.STATES,
                    "Checked or not, by pool",
                    "What was known of each pool over time. A gap is no data: the process was not scraped. "
                    "'not checked' means that copies ran and nothing was compared, which is not the same as "
                    "'all checked'.",
                    (Query(_state_of_pools(), "{{pool}}"),),
                    width=24,
                    height=7,
                    look=Look(
                        readings=(
                            Reading("0", "nothing came back", "blue"),
                            Reading("1", "not checked", "orange"),
                            Reading("2", "partly checked", "yellow"),
                            Reading("3", "all checked", "green"),
                            Reading("4", "mismatch", "red"),
                        )
                    ),
                ),
            ),
        ),
        Row(
            "Tiles",
            (
                Panel(
                    Kind.LINES,
                    "Tiles by outcome",
                    "Tiles moved a second, by what is known of them; the four add up to all that moved.",
                    (rates("result", pool_metric("tiles_total")),),
                    look=Look(unit="ops", stacked=True, colors=OUTCOME_COLORS, least=0),
                ),
                Panel(
                    Kind.LINES,
                    "Share checked, by pool and op",
                    "Of the tiles that came back, the share that was compared. No line where nothing came "
                    "back.",
                    (ratio("pool, op", BACK_COMPARED, BACK),),
                    look=SHARE,
                ),
                Panel(
                    Kind.TABLE,
                    "Tiles by pool and op",
                    "Counts since each process started. A backup has nothing to be compared with yet: its "
                    "tiles are witnessed, and verified or mismatched when they come back.",
                    tuple(Query(_tiles(result), result) for result, _ in OUTCOME_COLORS),
                    columns=("pool", "op"),
                    sort="mismatched",
                    look=COUNT,
                ),
                Panel(
                    Kind.LINES,
                    "Tiles skipped, by reason",
                    "Why tiles were neither compared nor witnessed, a second. 'off' and 'sampled_out' are "
                    "settings; 'reused' and 'unwitnessed' are the engine's doing; 'internal_error' is ours.",
                    (rates("reason", pool_metric("tiles_skipped_total")),),
                    look=Look(unit="ops", stacked=True, least=0),
                ),
            ),
        ),
        Row(
            "Findings",
            (
                Panel(
                    Kind.LINES,
                    "Findings by class",
                    "New findings a second. What was found before the first scrape does not show here but in "
                    "the table.",
                    (rates("class", FINDINGS),),
                    width=8,
                    look=Look(unit="ops", bars=True, stacked=True, least=0),
                ),
                Panel(
                    Kind.TABLE,
                    "Findings by class, pool and rank",
                    "The 25 largest counts since each process started, and one line of 0 if there are none; a "
                    "pool that is empty stands for findings that belong to none. The command, on the "
                    "instance's machine, shows the pages, layers and both values, and the journalctl query "
                    "that it runs.",
                    (Query(_findings(), "findings"),),
                    width=16,
                    columns=("class", "pool", "instance", "rank", "command"),
                    sort="findings",
                    look=BAD_IF_ANY,
                ),
                Panel(
                    Kind.TEXT,
                    "The first bad page",
                    "Pages are never labels, so they are not here: where to find them.",
                    width=24,
                    height=5,
                    content=(
                        "Metrics tell how many and where, never which page. For the pages, layers and the two "
                        "values that disagree:\n\n"
                        "    hicache-dbg logs --finding any --since '1 hour ago'\n"
                        "    hicache-dbg diagnose RECORDINGS\n"
                    ),
                ),
            ),
        ),
    ),
)
