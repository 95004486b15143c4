"""One process that holds layers, from its sockets to its KV blocks; it must not know the broker's policy."""
