"""How long an answer of a command may become, and what is said of one that was cut there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from stagewire.cli.notices import cut_notice
from stagewire.wire.errors import ErrorCode, SettingsError, StagewireError
from stagewire.wire.limits import MAX_TOKENS

if TYPE_CHECKING:
    from stagewire.client import Generation, Result, TokenEvent

DEFAULT_MAX_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class AnswerLimit:
    """At most `max_tokens`, None for as many as fit. What nobody has asked for gives way where less fits."""

    max_tokens: int | None = DEFAULT_MAX_TOKENS
    is_default: bool = True


def add_limit_flag(parser: argparse.ArgumentParser, default: int = DEFAULT_MAX_TOKENS) -> None:
    parser.add_argument(
        "--max-tokens", dest="limit", type=_limit, default=AnswerLimit(default), metavar="N",
        help=f"at most so many (default: {default}); off goes on to the context's end; "
        "0 only computes the prompt",
    )  # fmt: skip


class LimitedAnswer:
    """An answer within its limit; iterate over it for tokens, then `result` is there.

    Args:
        start: asks for the answer, with so many tokens at most.
        limit: how many.
    """

    def __init__(self, start: Callable[[int | None], Generation], limit: AnswerLimit) -> None:
        self._start, self._limit = start, limit
        self._generation = start(limit.max_tokens)

    @property
    def result(self) -> Result:
        """See `Generation.result`."""
        return self._generation.result

    def __iter__(self) -> Iterator[TokenEvent]:
        try:
            yield from self._generation
        except StagewireError as error:
            # It came instead of the first token, and says that the prompt and the limit together do not fit.
            if error.code is not ErrorCode.CONTEXT_OVERFLOW or not self._limit.is_default:
                raise
            self._generation = self._start(None)
            yield from self._generation

    def warn_of_cut(self) -> None:
        """Say on stderr if the answer was cut off, and by what."""
        if notice := cut_notice(self.result, self._limit.max_tokens, "--max-tokens"):
            print(notice, file=sys.stderr)

    def __enter__(self) -> LimitedAnswer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._generation.close()


def _limit(text: str) -> AnswerLimit:
    if text == "off":
        return AnswerLimit(None, is_default=False)
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_TOKENS:
        raise SettingsError(f"max_tokens={text:.80}: expected a number from 0 to {MAX_TOKENS}, or off")
    return AnswerLimit(number, is_default=False)
