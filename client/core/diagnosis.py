"""Why no broker has ever greeted this client: when to look, and what is to be said of what was found."""

from __future__ import annotations

from stagewire.client.core.events import Instruction, ProbeBroker
from stagewire.wire.address import Address
from stagewire.wire.answering import Found, Kind, Wanted, circumstance, mistake

LOOK_S = 0.75
"""Whoever is there has greeted by then."""
LOOK_AGAIN_S = 2.0
LOOK_UP_S = 2.0
"""A name that takes longer to look up counts as one that does not resolve."""


class Diagnosis:
    """Looked into while somebody waits for a broker that nobody has heard of yet.

    Attributes:
        mistake: what is wrong with the address, so that waiting is of no use; None otherwise.
        circumstance: why nobody has answered, as far as that is known; or empty.
    """

    def __init__(self, address: Address, connect_timeout_s: float) -> None:
        self._address = address
        self._first_s = min(LOOK_S, connect_timeout_s / 3)
        self._look_at: float | None = None
        self._asked_at: float | None = None
        self.mistake: str | None = None
        self.circumstance = ""

    def tick(self, is_needed: bool, now: float) -> list[Instruction]:
        """Call at least every 0.25 s."""
        if not is_needed:
            self._look_at = self.mistake = None
            return []
        if self._asked_at is not None:
            if self._address.is_name and now - self._asked_at >= LOOK_UP_S:
                self._tell(Found(Kind.NO_SUCH_NAME, f"no answer within {LOOK_UP_S:g} s"))
            return []
        if self._look_at is None:
            self._look_at = now + self._first_s
        if now < self._look_at:
            return []
        self._asked_at = now
        return [ProbeBroker(self._address)]

    def found(self, found: Found, now: float) -> None:
        """The answer to `ProbeBroker`."""
        self._asked_at, self._look_at = None, now + LOOK_AGAIN_S
        self._tell(found)

    def _tell(self, found: Found) -> None:
        self.circumstance = circumstance(found)
        wrong = mistake(found, self._address, Wanted.FRONTEND)
        self.mistake = wrong and f"endpoint={self._address.endpoint}: {wrong}"

    def check_invariants(self) -> None:
        assert not (self.mistake and self.circumstance)
