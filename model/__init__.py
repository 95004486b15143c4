"""Model files: readers, digests, the catalogue, the card; it must not know stages, sockets or torch."""
