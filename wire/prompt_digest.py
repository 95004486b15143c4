"""What tells one prompt from another where its tokens are not at hand: random numbers are drawn with it."""

from __future__ import annotations

import hashlib

from stagewire.wire.tensor import TokenIds


def prompt_digest(token_ids: TokenIds) -> bytes:
    """BLAKE2b of the ids as little-endian int32: 16 bytes, the same for equal prompts and for no others."""
    return hashlib.blake2b(token_ids.data, digest_size=16).digest()
