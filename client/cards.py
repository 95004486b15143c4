"""Model cards on this machine: fetched once by digest, kept in the user's cache folder, checked on every read."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from stagewire.wire.cache_folder import cache_folder
from stagewire.wire.card import ModelCard, card_digest
from stagewire.wire.errors import ProtocolError


class CardCache:
    """A folder of cards named by their SHA-256; one that cannot be written just keeps nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or cache_folder()) / "cards"

    def get(self, digest: str) -> ModelCard | None:
        """The card, unless it is missing or damaged."""
        try:
            return checked_card((self._folder / digest).read_bytes(), digest)
        except (OSError, ProtocolError):
            return None

    def put(self, digest: str, data: bytes) -> None:
        """Keep a card: written aside, then renamed, so that no reader sees half of it."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(data)
            Path(file.name).replace(self._folder / digest)


def checked_card(data: bytes, digest: str) -> ModelCard:
    """Decode a card that must have this digest.

    Raises:
        ProtocolError: it has another one, or is no card.
    """
    if card_digest(data) != digest:
        raise ProtocolError("the model card's bytes do not have its digest")
    return ModelCard.decode(data)
