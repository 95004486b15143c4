"""Talk with the model. Ctrl-C ends an answer and keeps the conversation; /reset forgets it, /quit leaves."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from stagewire.cli.characters import read_line
from stagewire.cli.endpoint import add_endpoint_flag, connect
from stagewire.cli.generate import add_answer_flags, warn_of_cut
from stagewire.cli.sampling import sampling_of
from stagewire.wire.errors import StagewireError

if TYPE_CHECKING:
    from stagewire.client import Session

EXAMPLES = """\
examples:
  stagewire chat
  stagewire chat --system "You answer in one sentence." --temperature 0.7
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_endpoint_flag(parser)
    add_answer_flags(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message at the beginning")


def run(options: argparse.Namespace) -> int:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415  arrow keys and history, where Python has them
    with connect(options) as client:
        # Before the first prompt, so that a missing server or extra is said at once.
        client.tokenizer()
        print(f"{client.card().name}: /reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C ends an answer")
        _converse(client.session(), options)
    return 0


def _converse(session: Session, options: argparse.Namespace) -> None:
    start = [{"role": "system", "content": options.system}] if options.system else []
    messages = [*start]
    while True:
        try:
            line = read_line("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if line == "/quit":
            return
        if line == "/reset":
            messages = [*start]
            print("forgotten")
        elif line.startswith("/"):
            print("/reset and /quit are the commands there are")
        elif line:
            messages = _turn(session, [*messages, {"role": "user", "content": line}], options)


def _turn(session: Session, messages: list[dict[str, str]], options: argparse.Namespace) -> list[dict[str, str]]:
    """One answer; returns the conversation with it, or without the question if nothing came."""
    said: list[str] = []
    try:
        with session.generate(
            messages=messages, sampling=sampling_of(options), max_tokens=options.max_tokens, stop=options.stop
        ) as generation:
            for token in generation:
                said.append(token.text)
                print(token.text, end="", flush=True)
            warn_of_cut(generation, options.max_tokens)
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    except StagewireError as error:  # the conversation goes on when the server does
        print(f"[{error.code.value}: {error.detail}]", end="")
    print(flush=True)
    answer = "".join(said)
    return [*messages, {"role": "assistant", "content": answer}] if answer else messages[:-1]
