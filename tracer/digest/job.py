"""Layout of the job that a watched operation's last launch reads on the device: int64 words, in order."""

__all__ = ["JOB"]

#: ``layers``: number of layers in the operation. ``last``: how many of them the last launch digests,
#: after all the others. ``arrivals``: int64 [pages], how many of the last layers each page has so far;
#: reset to 0 when the page is settled. ``digests``, ``row``: int64 [layers, pages], ``row`` elements
#: between layers. ``numbers``: the layer numbers. ``entries``, ``generations``, ``writes``: each page's
#: entry in the roll-up table and the two parts of its key. ``rollups``, ``size``: that table.
#: ``verdicts``: 0 to store roll-ups; otherwise int64 [pages], set to whether each page's matches.
JOB = (
    *("layers", "last", "arrivals", "digests", "row", "numbers"),
    *("entries", "generations", "writes", "rollups", "size", "verdicts"),
)
