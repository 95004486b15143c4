"""See it work: fetch the model, start a broker and two stages, answer a prompt, report, stop everything."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from stagewire.cli.answer_limit import LimitedAnswer, add_limit_flag
from stagewire.cli.generate import stream
from stagewire.cli.plan import add_plan_flags, planned_cluster
from stagewire.cli.terminal import interrupt_on_sigterm, progress_lines
from stagewire.wire.counted import counted

if TYPE_CHECKING:
    from stagewire.client import Result
    from stagewire.wire.status import Status

EXAMPLES = """\
examples:
  stagewire demo
  stagewire demo --stages 3 --prompt "Write a haiku about rivers."
  stagewire demo --split 0:10,10:20,20:30 --wire-condition hop=delay=10ms
"""
_PROMPT = "Explain in two sentences why the sky is blue."


def configure(parser: argparse.ArgumentParser) -> None:
    add_plan_flags(parser)
    parser.add_argument("--prompt", default=_PROMPT, help="what to ask (default: %(default)s)")
    add_limit_flag(parser, default=120)


def run(options: argparse.Namespace) -> int:

    interrupt_on_sigterm()
    with contextlib.ExitStack() as running:
        with progress_lines() as progress:
            cluster = running.enter_context(planned_cluster(options, progress))
        status = cluster.status()
        client = running.enter_context(cluster.client())
        session = client.session()
        print(f"\n> {options.prompt}\n")
        with LimitedAnswer(lambda most: session.generate(options.prompt, max_tokens=most), options.limit) as answer:
            stream(answer)
        print("\n".join(["", *report(status, answer.result)]), flush=True)
    print("all processes stopped")
    return 0


def report(status: Status, result: Result) -> list[str]:
    """What it took, in lines for people."""
    timings, usage = result.timings, result.usage
    first_s = timings.first_token_s or timings.total_s
    decode_s = timings.total_s - first_s
    rate = f"{(usage.completion_tokens - 1) / decode_s:.1f} tokens/s after it" if decode_s > 0 else "no rate"
    lines = [
        f"time to first token  {first_s * 1000:.0f} ms for {counted(usage.prompt_tokens, 'prompt token')}; {rate}",
        f"cached               {usage.cached_tokens} of {counted(usage.prompt_tokens, 'prompt token')}",
    ]
    infos = {stage.info.stage_id: stage.info for stage in status.stages}
    for timing in timings.stages:
        info = infos[status.pipelines[0].stage_ids[timing.stage_index]]
        lines.append(
            f"stage {timing.stage_index}              layers {info.layer_start}:{info.layer_end}, "
            f"{info.weight_bytes / 1e6:.0f} MB, {timing.compute_s / timing.steps * 1000:.1f} ms per step"
        )
    return lines
