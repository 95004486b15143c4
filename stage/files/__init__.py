"""KV blocks and snapshots in files, read and written by one thread."""
