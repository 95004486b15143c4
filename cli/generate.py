"""Complete one prompt and print the answer as it comes.

The prompt is one message of a user, in the model's chat template; with --raw, or where the model has no template, the
model continues it as it is. `Session.generate` of the Python API takes a text in the same way.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from stagewire.cli.answer_limit import LimitedAnswer, add_limit_flag
from stagewire.cli.characters import read_text
from stagewire.cli.endpoint import add_endpoint_flag, connect
from stagewire.cli.sampling import add_sampling_flags, sampling_of
from stagewire.cli.terminal import interrupt_on_sigterm
from stagewire.cli.visible import visible
from stagewire.wire.errors import SettingsError

if TYPE_CHECKING:
    from stagewire.client import Client, Generation, Result, Timings

EXAMPLES = """\
examples:
  stagewire generate "Why is the sky blue?"
  stagewire generate --raw "Once upon a time" --max-tokens 50
  stagewire generate "Name three rivers." --greedy
  stagewire generate "Name three rivers." --temperature 0.9 --seed 7
  echo "Say hello in French." | stagewire generate -
  stagewire generate "Name three rivers." --json
  stagewire generate "Name three rivers." --timings

With --timings a table on standard error says where the time went; an answer that was cut off says so there.
A terminal shows escape sequences and other control characters as \\x1b; a pipe or a file gets the answer as it is.
With --json one object is printed: text, token_ids, finish_reason, stop_reason, sampling, usage, timings, cache; or
error. `sampling` is what the tokens were drawn with: its values and its seed, given as flags, repeat the answer.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="the prompt; - reads it from standard input")
    add_endpoint_flag(parser)
    add_answer_flags(parser)
    parser.add_argument("--raw", action="store_true", help="no chat template: the model continues the text")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--json", action="store_true", help="print one object at the end instead of the text")
    parser.add_argument("--timings", action="store_true", help="say afterwards, on stderr, where the time went")


def add_answer_flags(parser: argparse.ArgumentParser) -> None:
    add_limit_flag(parser)
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given again"
    )
    add_sampling_flags(parser)


def run(options: argparse.Namespace) -> int:
    if options.raw and options.system:
        raise SettingsError("--raw and --system: without a chat template there is no system message; give one of them")
    interrupt_on_sigterm()  # so that whoever ends this command ends its request, too
    prompt = read_text() if options.prompt == "-" else options.prompt
    with connect(options) as client, _answer(client, prompt, options) as answer:
        if options.json:
            print(json.dumps(as_object(finished(answer))))
        else:
            stream(answer)
        if options.timings:
            print("\n".join(timing_table(answer.result.timings)), file=sys.stderr)
    return 0


def _answer(client: Client, prompt: str, options: argparse.Namespace) -> LimitedAnswer:
    sampling, session = sampling_of(options, lambda: client.card().sampling), client.session()
    messages = [{"role": "system", "content": options.system}, {"role": "user", "content": prompt}]

    def start(max_tokens: int | None) -> Generation:
        if options.system:
            return session.generate(messages=messages, sampling=sampling, max_tokens=max_tokens, stop=options.stop)
        return session.generate(prompt, raw=options.raw, sampling=sampling, max_tokens=max_tokens, stop=options.stop)

    return LimitedAnswer(start, options.limit)


def stream(answer: LimitedAnswer) -> None:
    """Print an answer's text as it comes, and a line end; then, on stderr, if it was cut.

    A terminal is shown control characters; a program that reads gets every byte as it is.
    """
    shown = visible if sys.stdout.isatty() else str
    try:
        for token in answer:
            print(shown(token.text), end="", flush=True)
    finally:  # what is said of its end, or the shell's prompt, is not a part of it
        print(flush=True)
    answer.warn_of_cut()


def finished(answer: LimitedAnswer) -> Result:
    """The result; a refusal or failure is raised."""
    for _token in answer:
        pass
    return answer.result


def timing_table(timings: Timings) -> list[str]:
    """Where the time went: a line for each part, in milliseconds and as a share of the whole."""
    if timings.parts is None:
        first = [("first token", timings.first_token_s)] if timings.first_token_s is not None else []
        rows, notes = [*first, ("total", timings.total_s)], ["no parts: the answer was ended here, not by the pipeline"]
    else:
        rows, notes = [*timings.parts.rows(), ("total", timings.total_s)], []
    lines = [f"{name:15} {1000 * seconds:9.2f} ms {_share(seconds, timings.total_s):4.0%}" for name, seconds in rows]
    return lines + notes


def _share(seconds: float, total_s: float) -> float:
    return seconds / total_s if total_s > 0 else 0.0


def as_object(result: Result) -> dict[str, object]:
    """A result as a program reads it."""
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason.value,
        "stop_reason": result.stop_reason,
        "sampling": asdict(result.sampling),
        "usage": asdict(result.usage),
        "timings": asdict(result.timings),
        "cache": asdict(result.cache),
    }
