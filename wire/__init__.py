"""What crosses between processes: messages, codec, tensor frames, error codes; it knows no sockets and no clocks."""
