"""How the command fails: one line that says what is wrong, one that says what to do, and an exit code."""

from __future__ import annotations

import json
import sys

from stagewire.wire.errors import ErrorCode, SettingsError, StagewireError
from stagewire.wire.extras import explained

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
"""As a shell reports a command that a signal has ended: 128 and the number of the signal."""

_NEXT_STEPS = {
    ErrorCode.UNREACHABLE: "start a cluster with `stagewire up`, or name one with --endpoint or STAGEWIRE_ENDPOINT",
    ErrorCode.NO_PIPELINE: "`stagewire status` says what is missing",
    ErrorCode.STAGE_LOST: "ask again; `stagewire status` says whether the pipeline is whole",
    ErrorCode.QUEUE_FULL: "ask again in a moment",
    ErrorCode.QUEUE_TIMEOUT: "ask again in a moment",
    ErrorCode.SHUTTING_DOWN: "ask again in a moment",
    ErrorCode.UNKNOWN_MODEL: "`stagewire models` lists the known ones; the path of a .gguf file will do too",
    ErrorCode.CONTEXT_OVERFLOW: "shorten the prompt, or lower --max-tokens",
    ErrorCode.PORT_IN_USE: "end the process that holds it, or choose another port (of `stagewire up`: --frontend-port)",
}


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
        print(f"error: {error.detail}", file=sys.stderr)
        if next_step := _next_step(error, command):
            print(f"  {next_step}", file=sys.stderr)
    return EXIT_USAGE if isinstance(error, SettingsError) else EXIT_FAILURE


def _next_step(error: StagewireError, command: str | None) -> str | None:
    if error.code in _NEXT_STEPS:
        return _NEXT_STEPS[error.code]
    if isinstance(error, SettingsError):
        return f"`stagewire {command} --help` shows the options" if command else "see `stagewire --help`"
    return None
