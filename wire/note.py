"""One line for the log, as every core asks its loop for it."""

from __future__ import annotations

import logging
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """A life event and what belongs to it, as `key=value`; `is_detail` where one of many is of no interest."""

    event: str
    fields: str = ""
    is_detail: bool = False

    def write(self, log: logging.Logger) -> None:
        log.log(logging.DEBUG if self.is_detail else logging.INFO, "event=%s %s", self.event, self.fields)
