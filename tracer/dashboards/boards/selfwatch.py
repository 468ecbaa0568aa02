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
    metric,
    rate,
    seen,
)

__all__ = ["SELF"]

DROPPED = metric("events_dropped_total")
EVENTS = metric("events_total")
SINK_ERRORS = metric("sink_errors_total")
OVERHEAD = metric("overhead_seconds_total")
SECONDS = metric("copy_duration_seconds_sum")
COPIES = metric("copies_total")

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
                    "By all sinks together, since each process started: what the other boards do not know. "
                    "Metric: hicache_dbg_events_dropped_total.",
                    (Query(f"sum({seen(DROPPED)})", "lost"),),
                    width=6,
                    height=5,
                    look=BAD_IF_ANY,
                ),
                Panel(
                    Kind.STAT,
                    "Batches that sinks failed",
                    "Since each process started. Metric: hicache_dbg_sink_errors_total.",
                    (Query(f"sum({seen(SINK_ERRORS)})", "failed"),),
                    width=6,
                    height=5,
                    look=BAD_IF_ANY,
                ),
                Panel(
                    Kind.STAT,
                    "The tracer's own failures",
                    "Errors that were swallowed so that the host went on, since each process started. "
                    "Metric: hicache_dbg_internal_errors_total.",
                    (Query(OWN_FAILURES, "failures"),),
                    width=6,
                    height=5,
                    look=BAD_IF_ANY,
                ),
                Panel(
                    Kind.STAT,
                    "Exporters that answer",
                    "The share of the scrape targets that answered; 'no data' if none is configured. "
                    "Metric: up.",
                    (Query('avg(up{job=~"$job",instance=~"$instance"})', "answer"),),
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
                    "Handed to the sinks a second, by rank. Metric: hicache_dbg_events_total.",
                    (Query(f"sum by (rank) ({rate(EVENTS)})", "rank {{rank}}"),),
                    look=PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Events lost, by sink and reason",
                    "A second. 'queue_full' is the bus or an outbox; the others are what the sink met. "
                    "Metric: hicache_dbg_events_dropped_total.",
                    (Query(f"sum by (sink, reason) ({rate(DROPPED)})", "{{sink}} {{reason}}"),),
                    look=PER_SECOND,
                ),
                Panel(
                    Kind.TABLE,
                    "Events lost since the start",
                    "The 25 largest counts. Metric: hicache_dbg_events_dropped_total.",
                    (
                        Query(
                            f"topk(25, sum by (sink, reason, rank) ({seen(DROPPED)}))",
                            "lost",
                        ),
                    ),
                    columns=("sink", "reason", "rank"),
                    sort="lost",
                    look=BAD_IF_ANY,
                ),
                Panel(
                    Kind.LINES,
                    "Queues",
                    "Records that wait in the bus, and events that wait for each sink. A queue that stays "
                    "full loses. Metrics: hicache_dbg_queue_depth, hicache_dbg_sink_queue_depth.",
                    (
                        Query(f"max by (rank) ({metric('queue_depth')})", "bus rank {{rank}}"),
                        Query(
                            f"max by (sink, rank) ({metric('sink_queue_depth')})",
                            "{{sink}} rank {{rank}}",
                        ),
                    ),
                    look=LEVEL,
                ),
                Panel(
                    Kind.LINES,
                    "Failures of sinks and of the tracer",
                    "A second, by sink and by place. "
                    "Metrics: hicache_dbg_sink_errors_total, hicache_dbg_internal_errors_total.",
                    (
                        Query(f"sum by (sink) ({rate(SINK_ERRORS)})", "sink {{sink}}"),
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
                    "Seconds a second that the tracer took from the threads it traces. "
                    "Metric: hicache_dbg_overhead_seconds_total.",
                    (Query(f"sum by (rank) ({rate(OVERHEAD)})", "rank {{rank}}"),),
                    width=8,
                    look=SECONDS_A_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Overhead, as a share of the copies' own time",
                    "Over the time shown. Metrics: hicache_dbg_overhead_seconds_total, "
                    "hicache_dbg_copy_duration_seconds.",
                    (
                        Query(
                            f"sum by (rank) ({seen(OVERHEAD)}) / sum by (rank) ({seen(SECONDS)})",
                            "rank {{rank}}",
                        ),
                    ),
                    width=8,
                    look=SECONDS_A_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Overhead a copy",
                    "Metrics: hicache_dbg_overhead_seconds_total, hicache_dbg_copies_total.",
                    (
                        Query(
                            f"sum by (rank) ({seen(OVERHEAD)}) / sum by (rank) ({seen(COPIES)})",
                            "rank {{rank}}",
                        ),
                    ),
                    width=8,
                    look=Look(unit="s", least=0),
                ),
            ),
        ),
    ),
)
