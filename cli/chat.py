"""Talk with the model. Ctrl-C ends an answer and keeps the conversation; /reset forgets it, /quit leaves."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from stagewire.cli.answer_limit import LimitedAnswer
from stagewire.cli.endpoint import add_endpoint_flag, connect
from stagewire.cli.generate import add_answer_flags
from stagewire.cli.sampling import sampling_of
from stagewire.wire.errors import StagewireError

if TYPE_CHECKING:
    from stagewire.client import Generation, SamplingParams, Session

EXAMPLES = """\
examples:
  stagewire chat
  stagewire chat --system "You answer in one sentence."
  stagewire chat --greedy
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_endpoint_flag(parser)
    add_answer_flags(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message at the beginning")


def run(options: argparse.Namespace) -> int:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415  arrow keys and history, where Python has them
    with connect(options) as client:
        sampling = sampling_of(options, lambda: client.card().sampling)
        # Before the first prompt, so that a missing server or extra is said at once.
        client.tokenizer()
        print(f"{client.card().name}: /reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C ends an answer")
        _converse(client.session(), sampling, options)
    return 0


def _converse(session: Session, sampling: SamplingParams | None, options: argparse.Namespace) -> None:
    start = [{"role": "system", "content": options.system}] if options.system else []
    messages = [*start]
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
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
            messages = _turn(session, [*messages, {"role": "user", "content": line}], sampling, options)


def _turn(
    session: Session, messages: list[dict[str, str]], sampling: SamplingParams | None, options: argparse.Namespace
) -> list[dict[str, str]]:
    """One answer; returns the conversation with it, or without the question if nothing came."""

    def start(max_tokens: int | None) -> Generation:
        return session.generate(messages=messages, sampling=sampling, max_tokens=max_tokens, stop=options.stop)

    said: list[str] = []
    try:
        with LimitedAnswer(start, options.limit) as answer:
            for token in answer:
                said.append(token.text)
                print(token.text, end="", flush=True)
            print(flush=True)
            answer.warn_of_cut()
    except KeyboardInterrupt:
        print(" [stopped]", flush=True)
    except StagewireError as error:  # the conversation goes on when the server does
        print(f"[{error.code.value}: {error.detail}]", flush=True)
    text = "".join(said)
    return [*messages, {"role": "assistant", "content": text}] if text else messages[:-1]
