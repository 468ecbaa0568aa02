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
    metric,
    rate,
    seen,
)

__all__ = ["HARDWARE"]

ECC = gpu_metric("ecc_errors_total")
UNCORRECTED = gpu_metric("ecc_errors_total", 'type="uncorrected"')
ROTTEN = metric("findings_total", 'class="bit_flip"')


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
                    "the driver was loaded or the watch began. Metrics: hicache_dbg_findings_total, "
                    "hicache_dbg_gpu_ecc_errors_total, hicache_dbg_gpu_xid_errors_total.",
                    (
                        Query(f"sum({seen(ROTTEN)})", "bit_flip findings"),
                        Query(f"sum({seen(UNCORRECTED)})", "uncorrected ECC errors"),
                        Query(f"sum({seen(gpu_metric('xid_errors_total'))})", "Xid errors"),
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
                    "and then this board is empty for a reason. Metric: hicache_dbg_nvml_state.",
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
                    "that an empty panel is not taken for no errors. Metric: hicache_dbg_gpu_reading_state.",
                    (
                        Query(
                            f"sum by (instance, gpu, reading, state) ({gpu_metric('reading_state')})",
                            "1 if so",
                        ),
                    ),
                    columns=("instance", "gpu", "reading", "state"),
                    look=COUNT,
                ),
                Panel(
                    Kind.TABLE,
                    "GPUs",
                    "Which GPUs each process sees, and the rank that runs on each if that is known. "
                    "Metric: hicache_dbg_gpu_info.",
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
                    "By state. Metric: hicache_dbg_gpu_memory_bytes.",
                    (
                        Query(
                            f"sum by (instance, gpu, state) ({gpu_metric('memory_bytes')})",
                            "{{instance}} GPU {{gpu}} {{state}}",
                        ),
                    ),
                    look=BYTES,
                ),
                Panel(
                    Kind.LINES,
                    "ECC errors",
                    "New errors a second, corrected and not. Metric: hicache_dbg_gpu_ecc_errors_total.",
                    (
                        Query(
                            f"sum by (instance, gpu, type) ({rate(ECC)})",
                            "{{instance}} GPU {{gpu}} {{type}}",
                        ),
                    ),
                    look=PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "Rows remapped and pages retired",
                    "Memory that was taken out of use, by cause; 'pending' waits for a reset. "
                    "Metrics: hicache_dbg_gpu_remapped_rows, hicache_dbg_gpu_retired_pages.",
                    (
                        Query(
                            f"sum by (instance, gpu, cause) ({gpu_metric('remapped_rows')})",
                            "{{instance}} GPU {{gpu}} rows {{cause}}",
                        ),
                        Query(
                            f"sum by (instance, gpu, cause) ({gpu_metric('retired_pages')})",
                            "{{instance}} GPU {{gpu}} pages {{cause}}",
                        ),
                    ),
                    look=LEVEL,
                ),
                Panel(
                    Kind.LINES,
                    "Xid, the latest",
                    "The number of the driver's latest error of each GPU, 0 if there was none. "
                    "Metric: hicache_dbg_gpu_last_xid.",
                    (
                        Query(
                            f"max by (instance, gpu) ({gpu_metric('last_xid')})",
                            "{{instance}} GPU {{gpu}}",
                        ),
                    ),
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
                    "Over the 20 ms in which a scrape looks. "
                    "Metric: hicache_dbg_gpu_pcie_bytes_per_second.",
                    (
                        Query(
                            f"sum by (instance, gpu, direction) ({gpu_metric('pcie_bytes_per_second')})",
                            "{{instance}} GPU {{gpu}} {{direction}}",
                        ),
                    ),
                    look=BYTES_PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "PCIe transfers that were repeated",
                    "A second; a bus that repeats is a bus with errors. "
                    "Metric: hicache_dbg_gpu_pcie_replays_total.",
                    (
                        Query(
                            f"sum by (instance, gpu) ({rate(gpu_metric('pcie_replays_total'))})",
                            "{{instance}} GPU {{gpu}}",
                        ),
                    ),
                    look=PER_SECOND,
                ),
                Panel(
                    Kind.LINES,
                    "PCIe link",
                    "Generation and lanes in use and at most; a link below its most is slow. "
                    "Metric: hicache_dbg_gpu_pcie_link.",
                    (
                        Query(
                            f"max by (instance, gpu, attribute) ({gpu_metric('pcie_link')})",
                            "{{instance}} GPU {{gpu}} {{attribute}}",
                        ),
                    ),
                    look=LEVEL,
                ),
                Panel(
                    Kind.LINES,
                    "Clocks held down",
                    "1 while clocks are held down for the reason. Metric: hicache_dbg_gpu_slow_clocks.",
                    (
                        Query(
                            f"max by (instance, gpu, reason) ({gpu_metric('slow_clocks')})",
                            "{{instance}} GPU {{gpu}} {{reason}}",
                        ),
                    ),
                    look=Look(decimals=0, least=0, most=1),
                ),
            ),
        ),
    ),
)
