"""The thread that owns the client's sockets."""
