"""Names of clients: chosen, and then somebody may come back under them, or drawn, and then nobody will."""

from __future__ import annotations

import secrets

_ANONYMOUS = "anonymous-"


def draw_client_id() -> str:
    """A name for a client that was given none; no two are alike."""
    return _ANONYMOUS + secrets.token_hex(8)


def is_anonymous(client_id: str) -> bool:
    """Whether the name was drawn: what such a client leaves behind belongs to nobody."""
    return client_id.startswith(_ANONYMOUS)
