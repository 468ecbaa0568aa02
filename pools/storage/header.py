"""The header of a stored page: format, owner, tokens and payload digest.

Layout: magic (8 B), length of the body (4 B), XXH3-64 of the body (8 B), the body as JSON, zeros up
to ``HEADER_BYTES``, then the payload. The header describes the record completely, so a record is
usable after a restart.
"""

import struct

import msgspec
import xxhash

from hicache_dbg.pools.storage.results import PageResult, PageState

__all__ = ["FORMAT", "HEADER_BYTES", "ComponentFormat", "Header", "HeaderError", "check"]

FORMAT = 1
MAGIC = b"HICACHE\n"
PRELUDE = struct.Struct("<8sIQ")
#: A multiple of the memory page and of the disk sector.
HEADER_BYTES = 4096


class HeaderError(ValueError):
    """The bytes are not a header, or the header does not fit into ``HEADER_BYTES``."""


class OtherFormatError(HeaderError):
    """An intact header of another version, whose pages are not ours to remove."""

    def __init__(self, got: int) -> None:
        super().__init__(f"header: format {got}, expected {FORMAT}")
        self.got = got


class _Told(msgspec.Struct):
    """What every version's header says."""

    format: int = 0


class ComponentFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One component's share of the payload, in the layout of the host pool."""

    pool: str
    component: str
    dtype: str
    layout: str
    layers: int
    slots: int
    row_bytes: int
    page_bytes: int


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a stored page.

    ``tokens`` is the XXH3-64 of all tokens up to the end of the page, ``digest`` that of the
    ``nbytes`` of payload, both in hexadecimal. An empty ``digest`` means that none was computed.
    """

    format: int = FORMAT
    key: str
    model: str
    namespace: str
    rank: int
    tokens: str
    components: tuple[ComponentFormat, ...]
    nbytes: int
    digest: str = ""

    def encode(self) -> bytes:
        """Return the header as ``HEADER_BYTES`` bytes.

        Raises:
            HeaderError: it is longer; the namespace is too long or the components are too many.
        """
        body = msgspec.json.encode(self)
        size = PRELUDE.size + len(body)
        if size > HEADER_BYTES:
            raise HeaderError(
                f"a header of {size} B for {len(self.components)} components and a namespace of "
                f"{len(self.namespace)} characters, expected at most {HEADER_BYTES} B"
            )
        prelude = PRELUDE.pack(MAGIC, len(body), xxhash.xxh3_64_intdigest(body))
        return (prelude + body).ljust(HEADER_BYTES, b"\0")

    @classmethod
    def decode(cls, raw: bytes | bytearray | memoryview) -> "Header":
        """Parse a header.

        Raises:
            OtherFormatError: the header is intact and of another version.
            HeaderError: the bytes are not a header, or were modified.
        """
        if len(raw) < PRELUDE.size:
            raise HeaderError(f"{len(raw)} B, expected a header of {HEADER_BYTES} B")
        magic, length, digest = PRELUDE.unpack_from(raw)
        if magic != MAGIC:
            raise HeaderError(f"begins with {magic!r}, expected {MAGIC!r}")
        body = bytes(raw[PRELUDE.size : PRELUDE.size + length])
        got = xxhash.xxh3_64_intdigest(body)
        if len(body) != length or got != digest:
            raise HeaderError(f"header digest {got:016x}, expected {digest:016x}")
        try:
            told = msgspec.json.decode(body, type=_Told)
            if told.format != FORMAT:
                raise OtherFormatError(told.format)
            header = msgspec.json.decode(body, type=cls)
            int(header.digest or "0", 16)
        except HeaderError:
            raise
        except ValueError as error:  # the base class of msgspec's errors, too
            raise HeaderError(f"unreadable header: {error}") from error
        return header


#: Checked in this order: the first field that differs determines the state.
_FIELDS = (
    ("key", PageState.FOREIGN),
    ("rank", PageState.FOREIGN),
    ("model", PageState.MISKEYED),
    ("namespace", PageState.MISKEYED),
    ("tokens", PageState.MISKEYED),
    ("components", PageState.MISKEYED),
    ("nbytes", PageState.MISKEYED),
)


def check(raw: bytes | bytearray | memoryview, wanted: Header, held: int) -> PageResult:
    """Compare a record of ``held`` bytes, starting with ``raw``, against the page ``wanted``.

    The result carries the payload digest of the header, which the caller must still compare.
    """
    if held < HEADER_BYTES:
        return PageResult(
            PageState.SHORT, "no whole header", expected=f"{HEADER_BYTES} B", got=f"{held} B"
        )
    try:
        found = Header.decode(raw)
    except OtherFormatError as error:
        texts = f"{FORMAT}", f"{error.got}"
        return PageResult(
            PageState.MISKEYED,
            "header: format differs",
            expected=texts[0],
            got=texts[1],
            nbytes=held,
        )
    except HeaderError as error:
        return PageResult(PageState.DAMAGED, str(error), nbytes=held)
    for name, state in _FIELDS:
        expected, got = getattr(wanted, name), getattr(found, name)
        if expected != got:
            texts = _difference(expected, got)
            return PageResult(
                state, f"header: {name} differs", expected=texts[0], got=texts[1], nbytes=held
            )
    promised = HEADER_BYTES + found.nbytes
    if held != promised:
        state = PageState.SHORT if held < promised else PageState.DAMAGED
        return PageResult(
            state, "another length", expected=f"{promised} B", got=f"{held} B", nbytes=held
        )
    return PageResult(nbytes=held, digest=int(found.digest, 16) if found.digest else 0)


def _difference(expected: object, got: object) -> tuple[str, str]:
    """Return both values as text; of components only the differing fields of the first that differs."""
    if not isinstance(expected, tuple) or not isinstance(got, tuple):
        return str(expected), str(got)
    for ours, theirs in zip(expected, got, strict=False):
        if ours != theirs:
            fields = [f for f in ours.__struct_fields__ if getattr(ours, f) != getattr(theirs, f)]
            return tuple(  # type: ignore[return-value]  # two sides, two texts
                f"{side.pool}.{side.component} "
                + " ".join(f"{f}={getattr(side, f)}" for f in fields)
                for side in (ours, theirs)
            )
    return f"{len(expected)} components", f"{len(got)} components"
