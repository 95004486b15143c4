"""What is said of an answer when it has come: that it was cut off, and how fast it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagewire.wire.counted import counted
from stagewire.wire.request import FinishReason

if TYPE_CHECKING:
    from stagewire.client import Result

_SHORTEST_S = 0.005
"""Tokens that came together have no rate."""


def cut_notice(result: Result, max_tokens: int | None, setting: str) -> str | None:
    """Why an answer is not whole, and, where `setting` has limited it, what to do; None if it is whole."""
    if result.finish_reason is not FinishReason.LENGTH or max_tokens == 0:
        return None
    num_tokens = result.usage.completion_tokens
    if max_tokens is not None and num_tokens >= max_tokens:
        more = f"{setting} N allows more, {setting} off as many as fit"
        return f"cut off: after {counted(num_tokens, 'token')}; {more}"
    return "cut off: the context, or the KV memory of the stages (--kv-tokens), is full"


def speed(result: Result) -> str:
    """Tokens a second from the first on, how long that took, and how much of the prompt was cached."""
    usage, times = result.usage, result.timings
    parts = [f"{counted(usage.completion_tokens, 'token')} in {times.total_s:.2f} s"]
    if times.first_token_s is not None:
        decoding_s = times.total_s - times.first_token_s
        if usage.completion_tokens > 1 and decoding_s > _SHORTEST_S:
            parts.append(f"{(usage.completion_tokens - 1) / decoding_s:.1f} tokens/s")
        parts.append(f"the first after {times.first_token_s:.2f} s")
    return ", ".join([*parts, f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached"])
