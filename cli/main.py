"""The entry point: finds the subcommand, imports that one only, and turns its errors into exit codes."""

# ruff: noqa: PLC0415  # imports wait until they are needed: `--help` answers at once, `broker` loads no torch
from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from stagewire.cli.characters import decode_texts, prepare_streams
from stagewire.cli.failure import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_TERMINATED, MissingExtra, report
from stagewire.cli.terminal import Terminated
from stagewire.wire.errors import SettingsError, StagewireError

COMMANDS = {
    "demo": "see it work: two stages answer a prompt, then everything stops",
    "up": "serve a model on this machine: a broker and stages, until Ctrl-C",
    "generate": "complete one prompt and print the answer as it comes",
    "chat": "talk with the model",
    "status": "show stages, pipelines and queue",
    "top": "watch what each stage does, live",
    "cache": "show what the stages' prefix caches hold, or clear them",
    "snapshot": "keep the beginning of prompts in memory, list what is kept, or free it",
    "models": "list the models that are known by name, or fetch one",
    "alerts": "print alert rules for Prometheus, with links to what to do",
    "doctor": "say what is installed here, what computes, and what is wrong",
    "completion": "print what makes bash, zsh or fish complete commands and options",
    "broker": "run a broker only",
    "stage": "run one stage only: some layers of a model",
}

_DESCRIPTION = "Serve one language model split by layers across processes and machines."
_EPILOG = """\
examples:
  stagewire demo
  stagewire up --stages 2
  stagewire generate "Why is the sky blue?"

`stagewire COMMAND --help` shows a command's options and examples.
exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted with Ctrl-C, 143 ended by SIGTERM;
`up`, `broker` and `stage` end with 0 at SIGTERM once they serve.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code. `--help` and `--version` leave by SystemExit."""
    from stagewire.sockets.open_files import raise_open_file_limit

    arguments = list(sys.argv[1:] if argv is None else argv)
    raise_open_file_limit()
    command = next((word for word in arguments if not word.startswith("-")), None)
    try:
        prepare_streams()
        options = parsed(arguments, command)
        decode_texts(options)
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        return EXIT_TERMINATED if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left: `stagewire generate ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush fails again
        return EXIT_FAILURE
    except StagewireError as error:
        return report(error, command if command in COMMANDS else None, "--json" in arguments)
    except ModuleNotFoundError as error:
        if not MissingExtra.explains(error):
            raise
        return report(MissingExtra(error), command, "--json" in arguments)


def parsed(arguments: list[str], command: str | None) -> argparse.Namespace:
    """Options may stand anywhere among a command's own words."""
    parser, chosen = _parsers(command)
    if chosen is not None and arguments[0] == command:
        return chosen.parse_intermixed_args(arguments[1:])
    return parser.parse_args(arguments)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            message += "; a value that begins with - is written behind =, as in --model=-m.gguf"
        raise SettingsError(message)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_ignored: object, **_also: object) -> NoReturn:
        from importlib.metadata import version

        print(f"stagewire {version('stagewire')}")
        parser.exit()


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The whole parser, with options for `command` only: the others are named but not imported."""
    return _parsers(command)[0]


def _parsers(command: str | None) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser | None]:
    """The whole parser, and that of `command` if there is such a one."""
    chosen = None
    parser = _Parser(
        prog="stagewire", description=_DESCRIPTION, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        subparser = commands.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        if name == command:
            module = importlib.import_module(f"stagewire.cli.{name}")
            subparser.description, subparser.epilog = module.__doc__, module.EXAMPLES
            module.configure(subparser)
            subparser.set_defaults(run=module.run)
            chosen = subparser
    return parser, chosen
