"""When a stage says who it is, and when it says in its log that nobody answers."""

from __future__ import annotations

import logging

log = logging.getLogger("stagewire.stage")

_AGAIN_S = 1.0
_WARN_EVERY = 10


class Registering:
    """Once a second until the broker has welcomed the stage, and whenever it has forgotten it."""

    def __init__(self, control_endpoint: str) -> None:
        self._control_endpoint = control_endpoint
        self._again_at = 0.0
        self._num_unanswered = 0

    def is_due(self, is_registered: bool, is_unknown: bool, now: float) -> bool:
        """Whether to register now."""
        is_unanswered = not is_registered and now >= self._again_at
        if is_unanswered or is_unknown:
            self._again_at = now + _AGAIN_S
        if is_unanswered:
            self._num_unanswered += 1
            if self._num_unanswered % _WARN_EVERY == 0:
                log.warning("event=no_answer control=%s detail='is a broker there?'", self._control_endpoint)
        return is_unanswered or is_unknown
