"""Model cards: asked of a head once, checked by digest, and given to clients."""

from __future__ import annotations

from collections import OrderedDict

from stagewire.broker.events import Peer
from stagewire.broker.peers import StageRecord
from stagewire.broker.state import BrokerState
from stagewire.wire.card import card_digest
from stagewire.wire.frontend import Card, GetCard
from stagewire.wire.limits import MAX_CARD_BYTES
from stagewire.wire.tensor import Blob

_MAX_CARDS = 8
_MAX_ASKERS = 4096
_WAIT_S = 5.0
_ASK_AGAIN_S = 1.0


class Cards:
    """The last eight cards, and who waits for one."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._cards: OrderedDict[str, Blob] = OrderedDict()
        self._askers: dict[tuple[str, Peer], float] = {}
        self._asked_at: dict[str, float] = {}

    def holder_came(self, stage: StageRecord, now: float) -> None:
        """A first stage has registered: fetch its card before anybody asks."""
        if stage.info.card_digest:
            self._fetch(stage.info.card_digest, now)

    def asked(self, peer: Peer, digest: str, now: float) -> None:
        if digest in self._cards:
            self._cards.move_to_end(digest)
            self._give(digest, peer)
        elif len(self._askers) < _MAX_ASKERS:
            self._askers[digest, peer] = now + _WAIT_S
            self._fetch(digest, now)
        else:
            self._give(digest, peer)

    def arrived(self, card: Card) -> str | None:
        """A head sends a card; returns what is wrong with it, if anything is."""
        if card.digest not in self._asked_at:
            return None
        if len(card.data.data) > MAX_CARD_BYTES or card_digest(bytes(card.data.data)) != card.digest:
            return f"card {card.digest:.80} of {len(card.data.data)} bytes does not have this digest"
        self._cards[card.digest] = card.data
        del self._asked_at[card.digest]
        if len(self._cards) > _MAX_CARDS:
            self._cards.popitem(last=False)
        for digest, peer in list(self._askers):
            if digest == card.digest:
                del self._askers[digest, peer]
                self._give(digest, peer)
        return None

    def expire(self, now: float) -> None:
        """Whoever has waited too long hears that nobody has it."""
        for (digest, peer), deadline in list(self._askers.items()):
            if now >= deadline:
                del self._askers[digest, peer]
                self._give(digest, peer)
        self._asked_at = {digest: at for digest, at in self._asked_at.items() if now - at < _WAIT_S}

    def _give(self, digest: str, peer: Peer) -> None:
        self._state.answer(peer, Card(digest, self._cards.get(digest, Blob())))

    def _fetch(self, digest: str, now: float) -> None:
        if digest in self._cards or now - self._asked_at.get(digest, float("-inf")) < _ASK_AGAIN_S:
            return
        for stage in self._state.pool:
            if stage.info.card_digest == digest and stage.peer:
                self._asked_at[digest] = now
                self._state.to_stage(stage, GetCard(digest))
                return

    def check_invariants(self) -> None:
        assert len(self._cards) <= _MAX_CARDS
        assert len(self._askers) <= _MAX_ASKERS
        assert not {digest for digest, _ in self._askers} & set(self._cards)
