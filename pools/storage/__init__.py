"""The tier behind the host: pages under keys of their content, in files or in a distributed store."""
