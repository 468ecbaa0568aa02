"""What do the GPUs report that could explain bytes that changed without a write?"""

from hicache_dbg.tracer.dashboards.looks import (
    BAD_IF_ANY,
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    LEVEL,
    PER_SECOND,
)
from hicache_dbg.tracer.dashboards.spec import (
    Board,
    Kind,
    Look,
    Panel,
    Query,
    Row,
    gpu_metric,
    level,
    metric,
    rates,
    total,
)

__all__ = ["HARDWARE"]

ECC = gpu_metric("ecc_errors_total")
UNCORRECTED = gpu_metric("ecc_errors_total", 'type="uncorrected"')
ROTTEN = metric("findings_total", 'class="bit_flip"')


def _gpu(selector: str, label: str = "", kind: str = "") -> tuple[str, str, str]:
    """Return labels, selector and legend of what each GPU tells, by a label of its own."""
    labels = ", ".join(filter(None, ("instance", "gpu", label)))
    legend = ("{{instance}} GPU {{gpu}}", kind, label and f"{{{{{label}}}}}")
    return labels, selector, " ".join(filter(None, legend))


HARDWARE = Board(
    uid="hicache-dbg-hardware",
    title="hicache-dbg / Hardware",
    description="GPU memory, bus and error counters from NVML, beside the findings they may explain.",
    rows=(
        Row(
            "Can the hardware be blamed",
            (
                Panel(
                    Kind.STAT,
                    "Flipped bits, and the counters beside them",
                    "Bytes that changed at rest with nobody writing, and uncorrected ECC and Xid errors since "
                    "the driver was loaded or the watch began.",
                    (
                        total(ROTTEN, "bit_flip findings"),
                        total(UNCORRECTED, "uncorrected ECC errors"),
                        total(gpu_metric("xid_errors_total"), "Xid errors"),
                    ),
                    width=12,
                    height=5,
                    no_value="no reading",
                    look=BAD_IF_ANY,
                ),
                Panel(
                    Kind.TABLE,
                    "How NVML answers",
                    "One line for the state of NVML in each process: 'absent' is a machine without a driver, "
                    "and then this board is empty for a reason.",
                    (
                        Query(
                            'sum by (job, instance, state) (hicache_dbg_nvml_state{job=~"$job",instance=~"$instance"})',
                            "processes",
                        ),
                    ),
                    width=12,
                    height=5,
                    columns=("job", "instance", "state"),
                    look=COUNT,
                ),
                Panel(
                    Kind.TABLE,
                    "How each reading went",
                    "'not_supported' and 'not_permitted' are states of their own, so "
                    "that an empty panel is not taken for no errors.",
                    (
                        level(
                            "instance, gpu, reading, state", gpu_metric("reading_state"), "1 if so"
                        ),
                    ),
                    columns=("instance", "gpu", "reading", "state"),
                    look=COUNT,
                ),
                Panel(
                    Kind.TABLE,
                    "GPUs",
                    "Which GPUs each process sees, and the rank that runs on each if that is known.",
                    (Query(gpu_metric("info"), "GPUs"),),
                    columns=("instance", "gpu", "rank", "model", "uuid", "bus"),
                    look=COUNT,
                ),
            ),
        ),
        Row(
            "Memory",
            (
                Panel(
                    Kind.LINES,
                    "GPU memory",
                    "By state.",
                    (level(*_gpu(gpu_metric("memory_bytes"), "state")),),
                    look=BYTES,
                ),
                Panel(
                    Kind.LINES,
                    "ECC errors",
                    "New errors a second, corrected and not.",
                    (rates(*_gpu(ECC, "type")),),
                    look=PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Rows remapped and pages retired",
                    "Memory that was taken out of use, by cause; 'pending' waits for a reset.",
                    (
                        level(*_gpu(gpu_metric("remapped_rows"), "cause", "rows")),
                        level(*_gpu(gpu_metric("retired_pages"), "cause", "pages")),
                    ),
                    look=LEVEL,
                ),
                Panel(
                    Kind.LINES,
                    "Xid, the latest",
                    "The number of the driver's latest error of each GPU, 0 if there was none.",
                    (level(*_gpu(gpu_metric("last_xid")), fold="max"),),
                    look=LEVEL,
                ),
            ),
        ),
        Row(
            "Bus and clocks",
            (
                Panel(
                    Kind.LINES,
                    "PCIe throughput",
                    "Over the 20 ms in which a scrape looks.",
                    (level(*_gpu(gpu_metric("pcie_bytes_per_second"), "direction")),),
                    look=BYTES_PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "PCIe transfers that were repeated",
                    "A second; a bus that repeats is a bus with errors.",
                    (rates(*_gpu(gpu_metric("pcie_replays_total"))),),
                    look=PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "PCIe link",
                    "Generation and lanes in use and at most; a link below its most is slow.",
                    (level(*_gpu(gpu_metric("pcie_link"), "attribute"), fold="max"),),
                    look=LEVEL,
                ),
                Panel(
                    Kind.LINES,
                    "Clocks held down",
                    "1 while clocks are held down for the reason.",
                    (level(*_gpu(gpu_metric("slow_clocks"), "reason"), fold="max"),),
                    look=Look(decimals=0, least=0, most=1),
                ),
            ),
        ),
    ),
)
