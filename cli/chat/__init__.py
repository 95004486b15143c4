"""Talk with the model. Ctrl-C ends an answer and keeps the conversation; /help lists what else can be typed.

On a terminal, answers are wrapped at its width, and a text of several lines that is pasted is one message. From a pipe
each line is one message, in turn; a prompt of several lines is what `stagewire generate -` reads. Answers go to
standard output, all else to standard error.
"""
# ruff: noqa: PLC0415  # imports wait until they are needed

from __future__ import annotations

import argparse

from stagewire.cli.endpoint import add_endpoint_flag, connect
from stagewire.cli.generate import add_answer_flags
from stagewire.cli.sampling import sampling_of
from stagewire.cli.terminal import leave_on_sigterm

EXAMPLES = """\
examples:
  stagewire chat
  stagewire chat --system "You answer in one sentence."
  stagewire chat --greedy
  stagewire chat --timings
  printf 'My name is Ada.\\nWhat is my name?\\n' | stagewire chat

At the prompt: /help, /retry, /reset, /system TEXT, /set NAME VALUE, /save FILE, /load FILE, /quit; //TEXT sends a text
that begins with a slash. Exit codes: 0 left, 130 Ctrl-C twice at the prompt; from a pipe 1 if a line was not answered.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_endpoint_flag(parser)
    add_answer_flags(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message at the beginning")
    parser.add_argument("--timings", action="store_true", help="say after each answer how fast it came, on stderr")


def run(options: argparse.Namespace) -> int:
    from stagewire.cli.chat.loop import ChatLoop

    leave_on_sigterm()
    with connect(options) as client:
        # Before the first prompt, so that a wrong flag, or a missing server or extra, is said at once.
        sampling_of(options, lambda: client.card().sampling)
        client.tokenizer()
        loop = ChatLoop(client, options)
        loop.greet(client.card().name)
        return loop.run()
