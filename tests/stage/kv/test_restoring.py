"""Restoring in one traversal of the ring: the messages on each hop, and the route at one stage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.in_process import InProcessPipeline, request
from support.toy_operators import expected_tokens
from support.toy_pipelines import GREEDY, TIMING, ask, toy_pipeline

from stagewire.stage.instructions import SendHead, SendNext
from stagewire.stage.stage_epoch import TakenStep
from stagewire.wire.request import Restored
from stagewire.wire.ring import Miss, Phase, Slice, Step, StepResult
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import Tensor, TokenIds

# --- one traversal ---


def slices_on_hops(pipeline: InProcessPipeline) -> list[list[tuple[Phase, int, int, bool]]]:
    """For each stage that sent steps with slices: what they were."""
    sent: list[list[tuple[Phase, int, int, bool]]] = [[] for _ in pipeline.cores]
    for index, message in pipeline.hops:
        if isinstance(message, Step):
            sent[index] += [(s.phase, s.num_restored, s.num_rows, s.missed) for s in message.slices]
    return sent


def forget_messages(pipeline: InProcessPipeline) -> None:
    pipeline.hops.clear()
    pipeline.fed.clear()


def test_a_prompt_seen_before_answers_after_exactly_one_traversal() -> None:
    """One message on each hop, with one row of activations; one back to the head; and the token is out."""
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(100)]
    ask(pipeline, "cold", prompt, 1)
    forget_messages(pipeline)
    pipeline.start(request("warm", prompt, 1, GREEDY))
    for index in range(3):
        assert pipeline.turn(index)
    assert pipeline.outputs["warm"].token_ids == expected_tokens(prompt, 1, 6)
    assert slices_on_hops(pipeline) == [[(Phase.TRY_RESTORE_DECODE, 99, 1, False)]] * 2 + [[]]
    activations = [m.hidden_states for _, m in pipeline.hops if isinstance(m, Step)]
    assert [tensor and tensor.shape for tensor in activations] == [(1, 2)] * 2
    ((sender, result),) = pipeline.fed
    assert sender == 2 and isinstance(result, StepResult)
    num_bytes = sum(99 * operators.block_bytes // 16 for operators in pipeline.operators)
    assert result.restored == (Restored(2, 99, 99, num_bytes),)
    assert (result.cache.lookups, result.cache.hits, result.cache.hit_stages) == (3, 3, 0b111)
    assert result.cache.restored_tokens == 3 * 99


def test_what_is_partly_there_is_restored_and_prefilled_in_one_traversal() -> None:
    """No stage waits to hear what the later ones hold."""
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(40)]
    ask(pipeline, "cold", prompt, 1)
    forget_messages(pipeline)
    assert ask(pipeline, "longer", [*prompt, 1, 2, 3], 1).cached_tokens == 40
    restore = [(Phase.TRY_RESTORE, 40, 0, False), (Phase.PREFILL, 0, 3, False)]
    assert slices_on_hops(pipeline) == [restore, restore, []]


@pytest.mark.parametrize("cleared", [0, 1, 2])
@pytest.mark.parametrize("extra", [0, 5])
def test_a_cache_cleared_on_one_stage_costs_one_message_and_counts_there(cleared: int, extra: int) -> None:
    """Fused, and with a rest to prefill. The head's own stage asks itself, which costs none."""
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(40)]
    ask(pipeline, "cold", prompt, 1)
    pipeline.stores[cleared].clear()
    forget_messages(pipeline)
    before = [store.statistics for store in pipeline.stores]
    prompt = [*prompt, *range(extra)]
    assert ask(pipeline, "warm", prompt, 1).cached_tokens == 0
    misses = [(index, message) for index, message in pipeline.fed if isinstance(message, Miss)]
    assert [(index, miss.length) for index, miss in misses] == ([(cleared, 0)] if cleared else [])
    missed = [now.statistics.misses - old.misses for now, old in zip(pipeline.stores, before, strict=True)]
    assert missed == [int(index == cleared) for index in range(3)]
    assert all(store.num_used == 0 for store in pipeline.stores)
    assert ask(pipeline, "again", prompt, 1).cached_tokens == len(prompt) - 1
    if not extra:
        assert pipeline.stores[0].prefixes() == pipeline.stores[1].prefixes() == pipeline.stores[2].prefixes()


def test_stages_that_hold_different_lengths_agree_on_the_least() -> None:
    """N shrinks at each stage; the tail tells the minimum, so that the head tries only once more."""
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(100)]
    for index, length in ((0, 96), (1, 64), (2, 32)):
        store = pipeline.stores[index]
        store.append(999, 0, np.array(prompt[:length], np.int32))
        store.release(999)
    forget_messages(pipeline)
    pipeline.start(request("r", prompt, 2, GREEDY))
    for index in range(3):
        assert pipeline.turn(index)
    restored = [m.restored for _, m in pipeline.fed if isinstance(m, StepResult)]
    block_bytes = [operators.block_bytes for operators in pipeline.operators]
    num_bytes = sum(length // 16 * size for length, size in zip((96, 64, 32), block_bytes, strict=True))
    assert restored == [(Restored(1, 32, 96, num_bytes, missed_at=1),)]


# --- the route of a restore at one stage ---


@pytest.mark.parametrize(("index", "is_held"), [(1, False), (2, False), (1, True), (2, True)])
def test_a_miss_goes_straight_to_the_head_a_hit_forward_and_at_the_tail_it_ends(index: int, is_held: bool) -> None:
    """Nothing of a miss is computed or passed on but its mark; a hit is forwarded without asking anybody."""
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(20)]
    if is_held:
        ask(pipeline, "cold", prompt, 1)
    stage_epoch = pipeline.cores[index].stage_epoch
    assert stage_epoch is not None
    span = Slice(50, Phase.TRY_RESTORE_DECODE, 0, 20, True, num_restored=19)
    row = Tensor.from_numpy(np.ones((1, 2), np.float32))
    taken = TakenStep(Step(9, (), (), (span,), (), (), TokenIds.of(prompt), row))
    plan = stage_epoch.executor.plan(taken.step)
    out = stage_epoch.finish(taken, plan, plan.compute(pipeline.operators[index]), [], TIMING, 0.0)
    to_head = [i.message for i in out if isinstance(i, SendHead)]
    forwarded = [i.message for i in out if isinstance(i, SendNext) and isinstance(i.message, Step)]
    assert [m for m in to_head if isinstance(m, Miss)] == ([] if is_held else [Miss(9, 50, 0)])
    assert len([m for m in to_head if isinstance(m, StepResult)]) == int(index == 2)
    assert [(step.slices, step.hidden_states is not None) for step in forwarded] == (
        [] if index == 2 else [((span if is_held else replace(span, missed=True, num_restored=0),), is_held)]
    )


def test_what_goes_on_as_a_decode_is_one_token_sampled_as_before() -> None:
    """Sequence and sampling stay; the prefix, its length and the wish to restore are gone."""
    span = Slice(7, Phase.TRY_RESTORE_DECODE, 0, 4, True, num_restored=3)
    assert span.as_decode() == Slice(7, Phase.DECODE, 3, 1, True)
    assert not replace(span, sample=False).as_decode().sample


def test_a_restored_request_is_drawn_with_its_own_parameters_and_its_whole_prompt() -> None:
    """Seed, temperature and penalties reach the tail as with a computed prompt."""
    sampling = SamplingParams(temperature=5.0, seed=11, repetition_penalty=3.0, presence_penalty=1.0)
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(45)]
    for name in ("cold", "warm"):
        pipeline.start(request(name, prompt, 12, sampling))
    outputs = pipeline.run()
    pipeline.start(request("hot", prompt, 12, sampling))
    outputs = pipeline.run()
    assert outputs["cold"].token_ids == outputs["warm"].token_ids == outputs["hot"].token_ids
    ending = outputs["hot"].ending
    assert ending is not None and ending.usage.cached_tokens == 44
