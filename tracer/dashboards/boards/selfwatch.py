"""Is the tracer itself healthy: does it drop events, do its sinks fail, what does it cost?"""

from hicache_dbg.tracer.dashboards.looks import BAD_IF_ANY, LEVEL, PER_SECOND, SECONDS_A_SECOND
from hicache_dbg.tracer.dashboards.spec import (
    Board,
    Kind,
    Look,
    Panel,
    Query,
    Reading,
    Row,
    Step,
    by,
    largest,
    level,
    metric,
    rate,
    rates,
    seen,
    total,
)

__all__ = ["SELF"]

DROPPED = metric("events_dropped_total")
EVENTS = metric("events_total")
SINK_ERRORS = metric("sink_errors_total")
OVERHEAD = metric("overhead_seconds_total")
SECONDS = metric("copy_duration_seconds_sum")
COPIES = metric("copies_total")
UP = 'up{job=~"$job",instance=~"$instance"}'
#: Every server has a rank 0: without the instance, their counts would be one line.
WHO = "instance, rank"
WHO_SHOWN = "{{instance}} rank {{rank}}"

#: A failure counter has no series before the first failure: show 0 for every rank that reports.
OWN_FAILURES = (
    f"sum(max_over_time({metric('internal_errors_total')}[$__range])) or 0 * count({EVENTS})"
)
OWN_FAILURES_RATE = (
    f"sum by (place) ({rate(metric('internal_errors_total'))}) or 0 * count({EVENTS})"
)


SELF = Board(
    uid="hicache-dbg-self",
    title="hicache-dbg / Self",
    description="The tracer about itself: events, losses by sink and reason, queue, failures, cost.",
    rows=(
        Row(
            "Is the tracer whole",
            (
                Panel(
                    Kind.STAT,
                    "Events lost",
                    "By all sinks together, since each process started: what the other boards do not know.",
                    (total(DROPPED, "lost"),),
                    width=6,
                    height=5,
                    look=BAD_IF_ANY,
                ),
                Panel(
                    Kind.STAT,
                    "Batches that sinks failed",
                    "Since each process started.",
                    (total(SINK_ERRORS, "failed"),),
                    width=6,
                    height=5,
                    look=BAD_IF_ANY,
                ),
                Panel(
                    Kind.STAT,
                    "The tracer's own failures",
                    "Errors that were swallowed so that the host went on, since each process started.",
                    (Query(OWN_FAILURES, "failures"),),
                    width=6,
                    height=5,
                    look=BAD_IF_ANY,
                ),
                Panel(
                    Kind.STAT,
                    "Exporters that answer",
                    "The share of the scrape targets that answer now, of those that did in the time shown; 'no "
                    "data' if none did.",
                    (Query(f"avg({UP} and on (job, instance) {seen(EVENTS)})", "answer"),),
                    width=6,
                    height=5,
                    look=Look(
                        unit="percentunit",
                        steps=(Step(None, "red"), Step(1, "green")),
                        readings=(Reading("0", "none", "red"),),
                    ),
                ),
            ),
        ),
        Row(
            "Events",
            (
                Panel(
                    Kind.LINES,
                    "Events",
                    "Handed to the sinks a second, by rank.",
                    (rates(WHO, EVENTS, WHO_SHOWN),),
                    look=PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Events lost, by sink and reason",
                    "A second. 'queue_full' is the bus or an outbox; the others are what the sink met.",
                    (rates("sink, reason", DROPPED),),
                    look=PER_SECOND,
                ),
                Panel(
                    Kind.TABLE,
                    "Events lost since the start",
                    "The 25 largest counts, and one line of 0 if nothing was lost.",
                    (Query(largest(f"sink, reason, {WHO}", DROPPED), "lost"),),
                    columns=("sink", "reason", "instance", "rank"),
                    sort="lost",
                    look=BAD_IF_ANY,
                ),
                Panel(
                    Kind.LINES,
                    "Queues",
                    "Records that wait in the bus, and events that wait for each sink. A queue that stays "
                    "full loses.",
                    (
                        level(WHO, metric("queue_depth"), f"bus {WHO_SHOWN}", fold="max"),
                        level(
                            f"sink, {WHO}",
                            metric("sink_queue_depth"),
                            f"{{{{sink}}}} {WHO_SHOWN}",
                            fold="max",
                        ),
                    ),
                    look=LEVEL,
                ),
                Panel(
                    Kind.LINES,
                    "Failures of sinks and of the tracer",
                    "A second, by sink and by place.",
                    (
                        rates("sink", SINK_ERRORS, "sink {{sink}}"),
                        Query(OWN_FAILURES_RATE, "place {{place}}"),
                    ),
                    width=24,
                    look=PER_SECOND,
                ),
            ),
        ),
        Row(
            "What it costs",
            (
                Panel(
                    Kind.LINES,
                    "Overhead",
                    "Seconds a second that the tracer took from the threads it traces.",
                    (rates(WHO, OVERHEAD, WHO_SHOWN),),
                    width=8,
                    look=SECONDS_A_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Overhead, as a share of the copies' own time",
                    "Of all time since each process started.",
                    (
                        Query(
                            f"{by(WHO, seen(OVERHEAD))} / {by(WHO, seen(SECONDS))}",
                            WHO_SHOWN,
                        ),
                    ),
                    width=8,
                    look=SECONDS_A_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Overhead a copy",
                    "Of all time since each process started.",
                    (
                        Query(
                            f"{by(WHO, seen(OVERHEAD))} / {by(WHO, seen(COPIES))}",
                            WHO_SHOWN,
                        ),
                    ),
                    width=8,
                    look=Look(unit="s", least=0),
                ),
            ),
        ),
    ),
)
