"""What the last stage does beyond computing: samples tokens, ends requests, returns both to the clients."""
