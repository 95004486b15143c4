"""Which sequences form the next step, and what of the KV pool each may use. Pure: no arrays, no torch, no sockets."""
