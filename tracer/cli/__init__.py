"""The command ``hicache-dbg``: one module per verb, each a thin layer over the library."""
