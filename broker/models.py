"""The models that stages brought, also after they left: what a request may name, and how long it may be."""

from __future__ import annotations

from collections import OrderedDict

from stagewire.wire.control import StageInfo
from stagewire.wire.frontend import ModelInfo

_MAX_MODELS = 64


class KnownModels:
    """Model descriptions by name and digest, the last ones registered."""

    def __init__(self) -> None:
        self._models: OrderedDict[tuple[str, str], ModelInfo] = OrderedDict()

    def all(self) -> tuple[ModelInfo, ...]:
        return tuple(self._models.values())

    def saw(self, info: StageInfo) -> None:
        key = info.model_name, info.model_digest
        known = self._models.get(key)
        # Only a first stage knows the card.
        card_digest = info.card_digest or (known.card_digest if known else "")
        self._models[key] = ModelInfo(*key, card_digest, info.context_length, info.vocab_size)
        self._models.move_to_end(key)
        if len(self._models) > _MAX_MODELS:
            self._models.popitem(last=False)

    def named(self, model: str | None) -> list[ModelInfo]:
        """Those that a request for `model` may run on; None takes any."""
        return [known for known in self._models.values() if model in (None, known.name)]

    def names(self) -> str:
        return ", ".join(sorted({known.name for known in self._models.values()}))
