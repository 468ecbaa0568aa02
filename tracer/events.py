"""Typed records of what happened: what travels over the bus and into every sink.

Every event is a frozen :class:`msgspec.Struct` tagged by its kind. Sinks know events and nothing of
pools or torch. Times are wall-clock nanoseconds since the epoch, durations microseconds, sizes
bytes.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

__all__ = [
    "SCHEMA_VERSION",
    "ComponentInfo",
    "Copied",
    "EndInfo",
    "Event",
    "FaultClass",
    "Finding",
    "Health",
    "MirrorInfo",
    "Op",
    "Outcome",
    "SkipReason",
    "Started",
    "Stated",
    "Tier",
    "Topic",
]

SCHEMA_VERSION = 1


class Op(StrEnum):
    """Operation: between which tiers bytes move, and in which direction."""

    BACKUP = "backup"
    LOAD = "load"
    STORE = "store"
    FETCH = "fetch"
    SEND = "send"
    RECV = "recv"

    __hash__ = str.__hash__  # Enum.__hash__ is Python code, and every copy hashes an Op


class Tier(StrEnum):
    """Where bytes are stored."""

    DEVICE = "device"
    HOST = "host"
    STORAGE = "storage"
    REMOTE = "remote"


#: Source and destination tier of each operation.
DIRECTION: Mapping[Op, tuple[Tier, Tier]] = {
    Op.BACKUP: (Tier.DEVICE, Tier.HOST),
    Op.LOAD: (Tier.HOST, Tier.DEVICE),
    Op.STORE: (Tier.HOST, Tier.STORAGE),
    Op.FETCH: (Tier.STORAGE, Tier.HOST),
    Op.SEND: (Tier.DEVICE, Tier.REMOTE),
    Op.RECV: (Tier.REMOTE, Tier.DEVICE),
}


class Outcome(StrEnum):
    """What is known of a tile that an operation moved.

    The four counts add up to the tiles moved.
    """

    VERIFIED = "verified"
    WITNESSED = "witnessed"
    MISMATCHED = "mismatched"
    SKIPPED = "skipped"


class SkipReason(StrEnum):
    """Why a moved tile was neither compared nor witnessed."""

    OFF = "off"
    SAMPLED_OUT = "sampled_out"
    UNWITNESSED = "unwitnessed"
    REUSED = "reused"
    GRAPH = "graph"
    RESHARDED = "resharded"
    PARTIAL = "partial"
    FAILED = "failed"
    UNREADABLE = "unreadable"
    INTERNAL_ERROR = "internal_error"


class FaultClass(StrEnum):
    """The classes of fault, ordered: of several that apply, the first names the cause."""

    ROW_WIDTH = "row_width"
    LAYOUT_ORDER = "layout_order"
    INDEX_SPACE = "index_space"
    SIDECAR_MISSING = "sidecar_missing"
    SLOT_REUSE = "slot_reuse"
    STORE_BEFORE_WRITE = "store_before_write"
    READ_BEFORE_LOAD = "read_before_load"
    FAILED_LOAD = "failed_load"
    KEY_IDENTITY = "key_identity"
    STALE_INDEX = "stale_index"
    STORAGE_DAMAGE = "storage_damage"
    RANK_DIVERGENCE = "rank_divergence"
    PD_CONTRACT = "pd_contract"
    PINNING = "pinning"
    DEAD_TIER = "dead_tier"
    CONTROL_TABLE = "control_table"
    DOUBLE_FREE = "double_free"
    BIT_FLIP = "bit_flip"


class Topic(StrEnum):
    """A subject on which several processes of one system must agree."""

    HIT_PAGES = "hit_pages"  #: pages found for a request, one value
    COLLECTIVE = "collective"  #: the name of a collective call, in the order of the calls
    CONTRACT = "contract"  #: a field of a handshake, under ``key``
    SENT = "sent"  #: pages of a request that were sent, and the outcome
    RECEIVED = "received"  #: pages of a request that were received, and the outcome
    KEY = "key"  #: under which key the content of ``request`` is stored
    TILES = "tiles"  #: digests of one logical page, one value per layer


class _Base(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """The fields that every event has."""

    time_ns: int
    rank: int = 0


class ComponentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One component at one end, as read off its tensor."""

    name: str
    dtype: str
    slot_bytes: int
    page_bytes: int
    pages: int
    layers: int


class EndInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One end of a mirror: its class, its layout, and the components as read off their tensors."""

    tier: Tier
    cls: str
    layout: str
    device: str
    slots_per_page: int
    components: tuple[ComponentInfo, ...]
    pinned: bool | None = None


class MirrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A pool and its copy in the next tier, with the geometry of both ends."""

    pool: str
    index_unit: str
    slot_page: int
    tokens_per_page: int
    device: EndInfo
    host: EndInfo


class Started(_Base, frozen=True, kw_only=True, tag="started"):
    """The start-up record of a rank: the attached system, its pools, and what was not recognized.

    ``classes_built`` and ``classes_unbuilt`` are the host pool classes of the attached system:
    fixing a formula in a class of the second list has no effect. ``place`` names the rank within
    the system, ``tp=1 pp=0 dp=0``. ``caches`` lists, for each cache, the names of the pools that
    move together; empty if the attached system does not say.
    """

    system: str
    version: str
    checksum: str
    mirrors: tuple[MirrorInfo, ...] = ()
    classes_built: tuple[str, ...] = ()
    classes_unbuilt: tuple[str, ...] = ()
    unrecognised: tuple[str, ...] = ()
    place: str = ""
    caches: tuple[tuple[str, ...], ...] = ()


class Copied(_Base, frozen=True, kw_only=True, tag="copied"):
    """One operation on one pool: the ``[HICACHE_DBG]`` line and everything beside it.

    ``h`` and ``d`` are the counts of host and device indices as the method was given them, in
    ``unit``; ``slot_page`` indices make up one page; ``pages`` is the number of pages moved.
    ``item_bytes`` is the size of a page of one layer at the device end, ``bytes`` what the copy
    really moved. ``verified + witnessed + mismatched + sum(skipped.values())`` is the number of
    tiles moved.

    For long operations the page lists hold only the first few pages; ``bad_tiles`` are ``(layer,
    host page)`` of the first tiles that differ. ``trace_id`` and ``span_id`` identify the span of
    the request that caused the operation, ``shared_with`` the spans of the other requests it
    serves; ``requests`` are the host's own ids of all of them, if it has any.
    """

    pool: str
    op: Op
    token_granular: bool
    layout: str
    h: int
    d: int
    slot_page: int
    unit: str
    pages: int
    item_bytes: int
    dtype: str
    layers: int
    cls: str
    io_backend: str
    src: Tier
    dst: Tier
    bytes: int
    duration_us: float
    verified: int = 0
    witnessed: int = 0
    mismatched: int = 0
    skipped: dict[str, int] = {}
    op_id: int = 0
    host_pages: tuple[int, ...] = ()
    device_pages: tuple[int, ...] = ()
    generations: tuple[int, ...] = ()
    trace_id: str = ""
    span_id: str = ""
    shared_with: tuple[tuple[str, str], ...] = ()
    requests: tuple[str, ...] = ()
    status: str = "ok"
    bad_tiles: tuple[tuple[int, int], ...] = ()

    @property
    def tiles(self) -> int:
        """Number of tiles the operation moved."""
        return self.verified + self.witnessed + self.mismatched + sum(self.skipped.values())


class Finding(_Base, frozen=True, kw_only=True, tag="finding"):
    """Something is wrong, and why.

    ``cls`` is the fault class, ``expected`` and ``got`` the two values that disagree, ``message``
    one line a person can act on, ``advice`` what to do next. ``pages`` holds the first few affected
    pages and ``page_count`` their number. ``count`` is above 1 if equal findings were collapsed.
    ``layer`` is -1 if the finding is about all layers. Digests of copies count a pool's own layers;
    gates, and joins of several processes, use the model's numbers.
    """

    cls: FaultClass
    pool: str
    message: str
    op: str = ""
    component: str = ""
    layer: int = -1
    pages: tuple[int, ...] = ()
    page_count: int = 0
    slots: str = ""
    expected: str = ""
    got: str = ""
    advice: str = ""
    check: str = ""
    op_id: int = 0
    count: int = 1
    trace_id: str = ""
    span_id: str = ""
    requests: tuple[str, ...] = ()


class Stated(_Base, frozen=True, kw_only=True, tag="stated"):
    """A statement of one process on a topic, to be compared with those of the others.

    ``role`` is ``prefill`` or ``decode``, and empty for ranks of one engine. ``request`` is the id
    that all processes share for a request; ``page`` is the logical page in it, never a slot. Tiles
    of one ``shard`` have the same bytes everywhere; ``layers`` are the layers of ``values``.
    ``began_ns`` is since when the process has followed the request, in nanoseconds since the epoch; 0
    if unknown.
    """

    topic: Topic
    values: tuple[str, ...]
    role: str = ""
    key: str = ""
    request: str = ""
    pool: str = ""
    component: str = ""
    shard: str = ""
    page: int = -1
    layers: tuple[int, ...] = ()
    began_ns: int = 0


class Health(_Base, frozen=True, kw_only=True, tag="health"):
    """The tracer's report about itself: a heartbeat, and a final one at the end of a run.

    All counts are totals since the start. ``dropped`` maps ``"sink/reason"`` to lost events; the
    bus's own ring counts as the sink ``bus``. ``errors`` maps a place to failures of the tracer
    itself. ``queues`` maps a sink to the events waiting for it; ``queue_depth`` is the length of
    the bus's ring. ``boot_ns`` is when it was made in nanoseconds since the machine's boot, a clock
    that nobody sets; 0 if unknown.
    """

    events: int = 0
    copies: int = 0
    verified: int = 0
    witnessed: int = 0
    mismatched: int = 0
    skipped: dict[str, int] = {}
    findings: int = 0
    queue_depth: int = 0
    queues: dict[str, int] = {}
    dropped: dict[str, int] = {}
    errors: dict[str, int] = {}
    overhead_s: float = 0.0
    closing: bool = False
    boot_ns: int = 0


Event = Started | Copied | Finding | Health | Stated
