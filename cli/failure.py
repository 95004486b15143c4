"""How the command fails: one line that says what is wrong, one that says what to do, and an exit code."""

from __future__ import annotations

import json
import sys

from stagewire.cli.error_words import ERROR_WORDS
from stagewire.cli.visible import visible
from stagewire.wire.errors import ErrorCode, SettingsError, StagewireError
from stagewire.wire.extras import explained

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
"""As a shell reports a command that a signal has ended: 128 and the number of the signal."""

_BY_HELP = frozenset({ErrorCode.INVALID_SETTING, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_LAYER_RANGE})


class MissingExtra(StagewireError):
    """The command needs a package that is not installed."""

    default_code = ErrorCode.INVALID_SETTING

    def __init__(self, error: ModuleNotFoundError) -> None:
        super().__init__(explained(error) or str(error))

    @staticmethod
    def explains(error: ModuleNotFoundError) -> bool:
        return explained(error) is not None


def report(error: StagewireError, command: str | None, as_json: bool) -> int:
    """Prints an error, as an object on stdout where a program reads, and returns the exit code."""
    if as_json:
        body = {"code": error.code.value, "message": error.detail, "retryable": error.retryable}
        print(json.dumps({"error": body}))
    else:
        print(f"error: {visible(error.detail)}", file=sys.stderr)
        if not isinstance(error, MissingExtra):  # which says what to do itself
            print(f"  {_next_step(error, command)}", file=sys.stderr)
    return EXIT_USAGE if isinstance(error, SettingsError) else EXIT_FAILURE


def _next_step(error: StagewireError, command: str | None) -> str:
    """What to do, and the code, by which docs/errors.md says more."""
    if isinstance(error, SettingsError) and error.code in _BY_HELP:
        return f"`stagewire {command} --help` shows the options" if command else "see `stagewire --help`"
    return f"{ERROR_WORDS[error.code].next_step} ({error.code.value})"
