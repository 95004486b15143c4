"""What stands between this client and one pipeline's tail."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.wire.epoch import Epoch

RELAY = 0
"""As a path: through the broker. Generations of sockets count from 1."""


@dataclass(slots=True)
class Pipeline:
    """The path to the tail of one epoch, and what it dials when that breaks.

    Attributes:
        link: the highest number that the tail has greeted with; `path` is where, a socket's generation or
            `RELAY`, or None while there is none.
        tail_nonce: of that greeting; `is_reply_due` until the next offer is bound and the reply says it.
        next: generation of the socket that the tail dials when the path breaks.
        lost_at: when a direct path broke; None on the relay, whose presence is the broker's.
        used_at: when a request last needed it.
    """

    epoch: Epoch
    used_at: float
    link: int = 0
    path: int | None = None
    tail_nonce: bytes = b""
    is_reply_due: bool = False
    next: int | None = None
    lost_at: float | None = None
