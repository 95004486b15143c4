"""Complete one prompt and print the answer as it comes.

The prompt goes through the model's chat template, as a user's message; --raw sends it as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from stagewire.cli.characters import read_text
from stagewire.cli.endpoint import add_endpoint_flag, connect
from stagewire.cli.sampling import add_sampling_flags, sampling_of
from stagewire.cli.terminal import interrupt_on_sigterm
from stagewire.wire.request import FinishReason

if TYPE_CHECKING:
    from stagewire.client import Generation, Result, Session, Timings

EXAMPLES = """\
examples:
  stagewire generate "Why is the sky blue?"
  stagewire generate --raw "Once upon a time" --max-tokens 50 --temperature 0
  echo "Say hello in French." | stagewire generate -
  stagewire generate "Name three rivers." --json
  stagewire generate "Name three rivers." --timings

With --timings a table on standard error says where the time went.
With --json one object is printed: text, token_ids, finish_reason, stop_reason, usage, timings, cache; or error.
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
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="at most so many (default: to the context's end); 0 only computes the prompt",
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given again"
    )
    add_sampling_flags(parser)


def run(options: argparse.Namespace) -> int:
    interrupt_on_sigterm()  # so that whoever ends this command ends its request, too
    prompt = read_text() if options.prompt == "-" else options.prompt
    with connect(options) as client, _start(client.session(), prompt, options) as generation:
        if options.json:
            print(json.dumps(as_object(finished(generation))))
        else:
            stream(generation, options.max_tokens)
        if options.timings:
            print("\n".join(timing_table(generation.result.timings)), file=sys.stderr)
    return 0


def _start(session: Session, prompt: str, options: argparse.Namespace) -> Generation:
    sampling = sampling_of(options)
    if options.raw:
        return session.generate(prompt, sampling=sampling, max_tokens=options.max_tokens, stop=options.stop)
    system = [{"role": "system", "content": options.system}] if options.system else []
    messages = [*system, {"role": "user", "content": prompt}]
    return session.generate(messages=messages, sampling=sampling, max_tokens=options.max_tokens, stop=options.stop)


def stream(generation: Generation, max_tokens: int | None) -> None:
    """Print an answer's text as it comes, and a line end."""
    for token in generation:
        print(token.text, end="", flush=True)
    print(flush=True)
    warn_of_cut(generation, max_tokens)


def warn_of_cut(generation: Generation, max_tokens: int | None) -> None:
    """Say on stderr if an answer was cut off where nobody had asked for it."""
    if max_tokens is None and generation.result.finish_reason is FinishReason.LENGTH:
        print("cut off: the context, or the KV memory of the stages (--kv-tokens), is full", file=sys.stderr)


def finished(generation: Generation) -> Result:
    """The result; a refusal or failure is raised."""
    for _token in generation:
        pass
    return generation.result


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
        "usage": asdict(result.usage),
        "timings": asdict(result.timings),
        "cache": asdict(result.cache),
    }
