"""What the tail keeps of one request for its client: tokens not yet acknowledged, the ending, the window."""

from __future__ import annotations

from dataclasses import dataclass, field

from stagewire.wire.request import Ending
from stagewire.wire.returns import RETURN_WINDOW, Acknowledgement, ReturnItem, TokenLogprobs


@dataclass(slots=True)
class ReturnStream:
    """Tokens from number `num_acknowledged` on; `ended_at` is when the ending was written (monotonic seconds)."""

    request_id: str
    num_acknowledged: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    ending: Ending | None = None
    ended_at: float | None = None
    is_held_by_client: bool = False
    is_told_paused: bool = False

    @property
    def num_tokens(self) -> int:
        """All tokens that were ever appended."""
        return self.num_acknowledged + len(self.token_ids)

    def append(self, item: ReturnItem, now: float) -> None:
        """Take what a step brought; `item.first_sequence` must be the next number."""
        assert item.first_sequence == self.num_tokens, (item, self.num_tokens)
        self.token_ids.extend(item.token_ids)
        self.logprobs.extend(item.logprobs)
        if item.ending is not None:
            self.ending, self.ended_at = item.ending, now

    def acknowledge(self, ack: Acknowledgement) -> bool:
        """Drop what the caller has; True when nothing is left to keep. Nonsense from a client changes nothing."""
        num_new = ack.num_tokens - self.num_acknowledged
        if 0 < num_new <= len(self.token_ids):
            del self.token_ids[:num_new]
            del self.logprobs[:num_new]
            self.num_acknowledged = ack.num_tokens
        return ack.ended and self.ending is not None and not self.token_ids

    def unacknowledged(self) -> ReturnItem | None:
        """What a new link must send again, or None."""
        if not self.token_ids and self.ending is None:
            return None
        logprobs = tuple(self.logprobs)
        return ReturnItem(self.request_id, self.num_acknowledged, tuple(self.token_ids), logprobs, self.ending)

    def turn(self) -> bool | None:
        """Whether the head must be told to pause (True) or go on (False); None when it knows already.

        A full window pauses the request, and half of one lets it go on.
        """
        threshold = RETURN_WINDOW // 2 if self.is_told_paused else RETURN_WINDOW
        wanted = self.is_held_by_client or len(self.token_ids) >= threshold
        if self.ending is not None or wanted == self.is_told_paused:
            return None
        self.is_told_paused = wanted
        return wanted
