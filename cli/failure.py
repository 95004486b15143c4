"""How the command fails: one line that says what is wrong, one that says what to do, and an exit code."""

from __future__ import annotations

import json
import sys

from stagewire.wire.errors import ErrorCode, SettingsError, StagewireError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_NEXT_STEPS = {
    ErrorCode.UNREACHABLE: "start a cluster with `stagewire up`, or name a broker with --endpoint",
    ErrorCode.NO_PIPELINE: "`stagewire status` says what is missing",
    ErrorCode.STAGE_LOST: "ask again; `stagewire status` says whether the pipeline is whole",
    ErrorCode.QUEUE_FULL: "ask again in a moment",
    ErrorCode.QUEUE_TIMEOUT: "ask again in a moment",
    ErrorCode.SHUTTING_DOWN: "ask again in a moment",
    ErrorCode.UNKNOWN_MODEL: "`stagewire models` lists the known ones; the path of a .gguf file will do too",
    ErrorCode.CONTEXT_OVERFLOW: "shorten the prompt, or lower --max-tokens",
    ErrorCode.DESCRIPTOR_LIMIT: "`ulimit -n 4096` before it, in the same shell; `ulimit -Hn` says how high it may be",
    ErrorCode.PORT_IN_USE: "end the process that holds it, or choose another port",
}
_EXTRAS = {"torch": "stage", "gguf": "native", "safetensors": "native", "tokenizers": "text", "jinja2": "text"}


class MissingExtra(StagewireError):
    """The command needs a package that is not installed."""

    default_code = ErrorCode.INVALID_SETTING

    def __init__(self, error: ModuleNotFoundError) -> None:
        package = (error.name or "").partition(".")[0]
        super().__init__(f"this needs the Python package {package}: pip install 'stagewire[{_EXTRAS[package]}]'")

    @staticmethod
    def explains(error: ModuleNotFoundError) -> bool:
        return (error.name or "").partition(".")[0] in _EXTRAS


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
