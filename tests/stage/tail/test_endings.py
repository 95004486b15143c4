"""What a step's draws and finishes become: tokens and endings for the clients, one result for the head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.tail_steps import (
    EPOCH,
    STOP,
    UNTIMED,
    decode,
    ending,
    endings,
    prefill,
    rows,
    run,
    start,
    step,
    tail,
    to_client,
    tokens,
)  # fmt: skip

from stagewire.stage.tail.core import Draw
from stagewire.stage.timing.timing_line import timing_line
from stagewire.wire.counters import TailCounters
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import CacheStatistics, FinishReason, Restored, StageTiming, Usage
from stagewire.wire.returns import ReturnItem, TokenLogprobs
from stagewire.wire.ring import Keep, Phase, SequenceFinish, SequenceResult, Slice, StepResult
from stagewire.wire.sampling import SamplingParams

CANCELLED = SequenceFinish(1, FinishReason.CANCELLED)


def test_a_token_goes_to_its_client_and_to_the_head() -> None:
    """Numbered from 0 in its request."""
    core = tail(start())
    assert run(core, step(prefill()), rows(3)) == (
        StepResult(1, (SequenceResult(1, (3,), None),), ()),
        [to_client(tokens(0, 3))],
    )
    assert run(core, step(decode(2), step_id=2), rows(4)) == (
        StepResult(2, (SequenceResult(1, (4,), None),), ()),
        [to_client(tokens(1, 4))],
    )


def test_log_probabilities_go_with_the_token_to_the_client_only() -> None:
    """The head has no use for them."""
    core = tail(start(sampling=SamplingParams(temperature=0.0, logprobs=1)))
    logits = np.where(rows(3) > 0, 0.0, -np.inf).astype(np.float32)
    logprobs = (TokenLogprobs(0.0, ((3, 0.0),)),)
    assert run(core, step(prefill()), logits) == (
        StepResult(1, (SequenceResult(1, (3,), None),), ()),
        [to_client(ReturnItem("r1", 0, (3,), logprobs, None))],
    )


@pytest.mark.parametrize(("last", "reason"), [(STOP, FinishReason.STOP), (4, FinishReason.LENGTH)])
def test_a_request_ends_with_a_stop_token_or_with_its_budget(last: int, reason: FinishReason) -> None:
    """The token is part of the answer, and a stop counts before the length; nothing of the request is left."""
    core = tail(start())
    run(core, step(prefill()), rows(3))
    run(core, step(decode(2)), rows(3))
    ended = ending(reason, 3)
    assert run(core, step(decode(3)), rows(last)) == (
        StepResult(1, (SequenceResult(1, (last,), reason, None, Usage(2, 3)),), ()),
        [to_client(tokens(2, last, ending=ended)), timing_line(start(), ended, EPOCH)],
    )
    assert core.num_requests == 0
    assert core.counters() == TailCounters(num_prompt_tokens=2, num_cached_tokens=0, num_generated_tokens=3)


def test_only_the_requests_own_stop_tokens_stop_it() -> None:
    """One that was asked to ignore the model's end token has none, and goes on behind it."""
    ignores = replace(start(), stop_token_ids=())
    core = tail(ignores)
    assert run(core, step(prefill()), rows(STOP))[0].results == (SequenceResult(1, (STOP,), None),)


@pytest.mark.parametrize(
    ("finish", "code"),
    [
        (CANCELLED, None),
        (SequenceFinish(1, FinishReason.FAILED, ErrorCode.SNAPSHOT_FILE, "no such file"), ErrorCode.SNAPSHOT_FILE),
    ],
)
def test_the_head_ends_a_request_through_the_tail(finish: SequenceFinish, code: ErrorCode | None) -> None:
    """With its code and detail for the client; what was sent before is counted."""
    core = tail(start())
    run(core, step(prefill()), rows(3))
    ended = ending(finish.finish_reason, 1, code, finish.detail)
    assert run(core, step(finishes=(finish,))) == (
        StepResult(1, (SequenceResult(1, (), finish.finish_reason, code, Usage(2, 1)),), ()),
        [to_client(tokens(1, ending=ended)), timing_line(start(), ended, EPOCH)],
    )


@pytest.mark.parametrize(("stop_after", "num_wanted"), [(2, 2), (1, 1), (0, 0), (9, 2)])
def test_a_stop_string_that_the_client_has_found_ends_it_as_a_stop_of_so_many_tokens(
    stop_after: int, num_wanted: int
) -> None:
    """All that were sent are still told, so that the client can see that it has them."""
    core = tail(start())
    run(core, step(prefill()), rows(3))
    run(core, step(decode(2)), rows(3))
    finish = SequenceFinish(1, FinishReason.STOP, stop_after=stop_after)
    ended = replace(ending(FinishReason.STOP, 2), usage=Usage(2, num_wanted))
    assert run(core, step(finishes=(finish,))) == (
        StepResult(1, (SequenceResult(1, (), FinishReason.STOP, None, Usage(2, num_wanted)),), ()),
        [to_client(tokens(2, ending=ended)), timing_line(start(), ended, EPOCH)],
    )


def test_a_request_that_never_ran_gets_its_ending_too() -> None:
    """It starts and is finished in one step, without a slice."""
    core = tail()
    both = step(starts=(start(),), finishes=(SequenceFinish(1, FinishReason.LENGTH),))
    core.begin(both, 0.0)
    result, out = core.record(both, core.draw(both, None), (), 0.0)
    assert result.results == (SequenceResult(1, (), FinishReason.LENGTH, None, Usage(2, 0)),)
    assert out == [timing_line(start(), ending(FinishReason.LENGTH, 0), EPOCH)], "the client has not said hello yet"


def test_a_request_has_exactly_one_ending() -> None:
    """The first: what ends by itself is not cancelled in the same step, nor later, nor does anything draw for it."""
    core = tail(start())
    result, out = run(core, step(prefill(), finishes=(CANCELLED,)), rows(STOP))
    assert result.results == (SequenceResult(1, (STOP,), FinishReason.STOP, None, Usage(2, 1)),)
    assert endings(out) == [ending(FinishReason.STOP, 1)]
    assert run(core, step(decode(3), finishes=(CANCELLED,)), rows(3)) == (StepResult(1, (), ()), [])


def test_a_finish_that_comes_twice_in_a_step_counts_once() -> None:
    """The second finds no request any more, like one in a later step."""
    core = tail(start())
    result, out = run(core, step(finishes=(CANCELLED, replace(CANCELLED, finish_reason=FinishReason.FAILED))))
    assert result.results == (SequenceResult(1, (), FinishReason.CANCELLED, None, Usage(2, 0)),)
    assert endings(out) == [ending(FinishReason.CANCELLED, 0)]


def test_a_failed_draw_is_the_ending_that_a_cancel_finds() -> None:
    """The draw comes first; the reason stays what it was."""
    core = tail(start())
    both = step(prefill(), finishes=(CANCELLED,))
    result, out = core.record(both, [Draw(1, None, "broken")], (), 0.0)
    assert result.results == (SequenceResult(1, (), FinishReason.FAILED, ErrorCode.DECODE_FAILED, Usage(2, 0)),)
    assert endings(out) == [ending(FinishReason.FAILED, 0, ErrorCode.DECODE_FAILED, "broken")]


def test_a_request_that_wants_no_tokens_ends_with_the_step_of_its_prompt() -> None:
    """Its rows are computed for the cache alone; the one item of the step is its ending."""
    core = tail(start())
    both = step(replace(prefill(), sample=False), finishes=(SequenceFinish(1, FinishReason.LENGTH),))
    ended = ending(FinishReason.LENGTH, 0)
    assert run(core, both) == (
        StepResult(1, (SequenceResult(1, (), FinishReason.LENGTH, None, Usage(2, 0)),), ()),
        [to_client(tokens(0, ending=ended)), timing_line(start(), ended, EPOCH)],
    )


def test_a_step_sends_each_client_one_message_with_an_item_for_each_of_its_requests() -> None:
    """In the order of the slices; a client without news hears nothing, and the log's lines come last."""
    starts = (start(1), start(2, client_id="d"), start(3), start(4, client_id="e"))
    core = tail(*starts)
    result, out = run(core, step(prefill(3), prefill(2), prefill(1)), rows(3, STOP, 4))
    stopped = ending(FinishReason.STOP, 1)
    assert result.results == (
        SequenceResult(3, (3,), None),
        SequenceResult(2, (STOP,), FinishReason.STOP, None, Usage(2, 1)),
        SequenceResult(1, (4,), None),
    )
    assert out == [
        to_client(tokens(0, 3, seq_id=3), tokens(0, 4)),
        to_client(tokens(0, STOP, seq_id=2, ending=stopped), client_id="d"),
        timing_line(starts[1], stopped, EPOCH),
    ]


# --- what endings carry ---


@pytest.mark.parametrize(
    ("first", "cached_tokens"),
    [
        (prefill(), 0),
        (Slice(1, Phase.TRY_RESTORE_DECODE, 0, 2, True, num_restored=1), 1),
        (Slice(1, Phase.RESUME, 0, 2, True, num_restored=2, source=50), 2),
        (Slice(1, Phase.TRY_RESTORE, 0, 2, False, missed=True, num_restored=0), 0),
    ],
)
def test_usage_tells_what_the_first_slice_took_from_the_cache(first: Slice, cached_tokens: int) -> None:
    """What a later one restores, after a preemption, the request had computed itself."""
    core = tail(start())
    core.record(step(first), [], (), 0.0)
    again = Slice(1, Phase.TRY_RESTORE_DECODE, 0, 2, True, num_restored=1)
    _, out = run(core, step(again), rows(STOP))
    assert endings(out) == [ending(FinishReason.STOP, 1, cached_tokens=cached_tokens)]
    assert core.counters() == TailCounters(2, cached_tokens, 1)


def test_no_more_is_cached_than_the_prompt_has() -> None:
    """A sequence may be restored beyond it."""
    core = tail(start())
    _, out = run(core, step(Slice(1, Phase.TRY_RESTORE_DECODE, 0, 5, True, num_restored=4)), rows(STOP))
    assert endings(out) == [ending(FinishReason.STOP, 1, cached_tokens=2)]


def test_the_head_hears_what_was_restored_and_kept_whatever_was_drawn() -> None:
    """An item for each restore, a miss included; a snapshot's length goes with the ending."""
    core = tail(start(1), start(2))
    slices = (
        Slice(1, Phase.TRY_RESTORE, 0, 2, False, num_restored=1),
        Slice(1, Phase.PREFILL, 1, 1, True, keep=Keep(50, 2)),
        Slice(2, Phase.TRY_RESTORE_DECODE, 0, 2, True, missed=True, num_restored=0),
        Slice(9, Phase.PREFILL, 0, 1, False, keep=Keep(51, 1)),
    )
    restored = (Restored(1, 1, 2, 10, 0, 0), Restored(2, 0, 1, 0, 0, 1))
    result, out = run(core, replace(step(*slices), restored=restored), rows(STOP, 3))
    assert result == StepResult(
        1,
        (SequenceResult(1, (STOP,), FinishReason.STOP, None, Usage(2, 1, 1)),),
        (),
        restored=restored,
        kept=(50, 51),
    )
    assert endings(out) == [replace(ending(FinishReason.STOP, 1, cached_tokens=1), kept_tokens=2)]


def test_cache_statistics_are_of_the_steps_that_held_the_request() -> None:
    """Each step's once, also where two of its slices are the request's; the head hears those of each step."""
    core = tail(start(1), start(2))
    found, missed = CacheStatistics(lookups=1, hits=1, hit_stages=0b1), CacheStatistics(lookups=1, miss_stages=0b10)
    restore, rest = Slice(1, Phase.TRY_RESTORE, 0, 1, False, num_restored=0), Slice(1, Phase.PREFILL, 1, 1, True)
    first = replace(step(restore, rest), cache=found)
    assert run(core, first, rows(3))[0].cache == found
    assert run(core, replace(step(prefill(2)), cache=missed), rows(3))[0].cache == missed
    _, out = run(core, replace(step(decode(2)), cache=missed), rows(STOP))
    expected = CacheStatistics(lookups=2, hits=1, hit_stages=0b1, miss_stages=0b10)
    assert endings(out) == [replace(ending(FinishReason.STOP, 2), cache=expected)]


def test_timings_go_to_the_head_and_add_up_in_the_ending() -> None:
    """Of all stages, and of those steps only that held the request."""
    core = tail(start(1), start(2))
    timings = (StageTiming(0, 1, 0.5, 0.0, 0.0), StageTiming(1, 1, 0.25, 0.125, 0.0))
    assert run(core, step(prefill(1)), rows(3), timings)[0].timings == timings
    run(core, step(prefill(2)), rows(3), timings)
    _, out = run(core, step(decode(2, 1)), rows(STOP), timings)
    (ended,) = endings(out)
    assert ended.timings == (StageTiming(0, 2, 1.0, 0.0, 0.0), StageTiming(1, 2, 0.5, 0.25, 0.0))
    assert replace(ended, timings=(), timing=UNTIMED) == ending(FinishReason.STOP, 2)


def test_the_time_to_write_a_step_belongs_to_those_that_it_held_and_is_told_with_the_next() -> None:
    """Whatever else runs then, once: the step behind that one tells of others."""
    core = tail(start(1), start(2))
    run(core, step(prefill(1)), rows(3))
    for span, written_s in ((prefill(2), 0.5), (decode(2, 2), 0.25)):
        timings = (StageTiming(0, 1, 0.0, 0.0, written_s, written_s=written_s), StageTiming(1, 1, 0.0, 0.0, 0.0))
        run(core, step(span), rows(3), timings)
    (ended,) = endings(run(core, step(finishes=(CANCELLED,)))[1])
    assert ended.timing == replace(UNTIMED, prefill_s=0.5)
