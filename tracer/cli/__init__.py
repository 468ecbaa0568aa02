"""The command ``hicache-dbg``: one file a verb, which only translates."""
