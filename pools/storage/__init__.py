"""The storage tier behind the host: content-addressed pages, in files or in a distributed store."""
