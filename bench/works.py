"""The works that are measured, by name: how many sequences, how long their prompts, how much each generates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PROMPT_TOKENS = 128
GENERATE_TOKENS = 64


class Phase(str, Enum):
    """Which part of a generation is timed."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Work:
    """`num_sequences` prompts of `prompt_tokens`; DECODE times `generate_tokens` of each, all running together."""

    name: str
    phase: Phase
    num_sequences: int
    prompt_tokens: int
    generate_tokens: int

    @property
    def context_tokens(self) -> int:
        """Of one sequence, with room for one token more."""
        return self.prompt_tokens + self.generate_tokens + 1

    @property
    def timed_tokens(self) -> int:
        tokens = self.prompt_tokens if self.phase is Phase.PREFILL else self.generate_tokens
        return self.num_sequences * tokens


def prefill(prompt_tokens: int) -> Work:
    return Work(f"prefill_{prompt_tokens}", Phase.PREFILL, 1, prompt_tokens, 1)


def decode(num_sequences: int) -> Work:
    return Work(f"decode_{num_sequences}", Phase.DECODE, num_sequences, PROMPT_TOKENS, GENERATE_TOKENS)


def decode_at(depth: int) -> Work:
    return Work(f"decode_1_at_{depth}", Phase.DECODE, 1, depth, GENERATE_TOKENS)


WORKS = (prefill(512), prefill(2048), decode(1), decode(4), decode(8), decode(16), decode_at(2048), decode_at(6144))
SINGLE_STAGE_WORKS = (prefill(512), decode(1), decode(8))
"""What a single stage with two threads is measured at, besides."""
