"""How llama.cpp can be set up for a work, and what the process that runs it is asked. Data only, no library."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Buffers(str, Enum):
    """Into which layout weights are brought at loading; which one is fastest depends on type, work and processor."""

    DEFAULT = "default"
    """What the library chooses by itself: tiles (AMX) where the processor has them, else as REPACK."""
    REPACK = "repack"
    """Rows side by side for vector instructions."""
    PLAIN = "plain"
    """As they are in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSetting:
    """One way to run a model file. `servers` are RPC servers that share the layers; none runs all here."""

    file: str
    threads: int
    buffers: Buffers = Buffers.DEFAULT
    ubatch_tokens: int = 512
    servers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.buffers.value} buffers, ubatch {self.ubatch_tokens}"


BUFFERS = tuple(Buffers)
UBATCH_TOKENS = (128, 512, 2048)
