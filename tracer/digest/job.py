"""What a watched operation's last launch finds on the device: words, int64, in order."""

__all__ = ["JOB"]

#: ``layers``: how many layers the operation has; the last launch takes the digests of ``last`` of
#: them, when all others are there. ``arrivals``: int64 [pages], how many of these each page has so
#: far; 0 again once it is settled. ``digests``, ``row``: int64 [layers, pages] with ``row`` elements
#: from layer to layer. ``numbers``: the layers' numbers. ``entries``, ``generations``, ``writes``: for
#: each page its entry in the table, and the life that its key is made of. ``rollups``, ``size``: the
#: table of entries. ``verdicts``: 0 to store roll-ups; else int64 [pages], whether each equals its.
JOB = (
    *("layers", "last", "arrivals", "digests", "row", "numbers"),
    *("entries", "generations", "writes", "rollups", "size", "verdicts"),
)
