"""The same tokens whatever the cut, the batch, the chunking and the blocks: bits are compared, not impressions."""

from __future__ import annotations

import numpy as np
import pytest
from support.in_process import InProcessPipeline, request
from support.whole_model import DEFAULT_PRECISION, whole_model

from stagewire.stage.compute.operators import Batch, SequenceRows
from stagewire.wire.request import FinishReason
from stagewire.wire.sampling import SamplingParams

PROMPT = [504, 3575, 282, 260, 905, 314, 253, 2366, 1194, 335, 18, 4093, 198, 57, 416, 253, 1100, 28]
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, repetition_penalty=1.1, seed=1234, logprobs=2)
NUM_TOKENS = 8
NUM_LAYERS = 30


def answers(pipeline: InProcessPipeline) -> list[tuple[list[int], list[float]]]:
    """A greedy and a seeded answer, computed side by side."""
    pipeline.start(request("greedy", PROMPT, NUM_TOKENS, GREEDY), request("seeded", PROMPT, NUM_TOKENS, SEEDED))
    outputs = pipeline.run()
    for output in outputs.values():
        assert output.ending is not None
        assert output.ending.finish_reason is FinishReason.LENGTH
    return [(outputs[name].token_ids, outputs[name].logprobs) for name in ("greedy", "seeded")]


@pytest.fixture(scope="module")
def uncut() -> list[tuple[list[int], list[float]]]:
    return answers(whole_model().pipeline())


@pytest.mark.parametrize("cut", range(1, NUM_LAYERS))
def test_every_cut_into_two_gives_the_same_tokens(cut: int, uncut: list[tuple[list[int], list[float]]]) -> None:
    """Each of the 29; log probabilities too, to the last bit."""
    assert answers(whole_model().pipeline(cut)) == uncut


@pytest.mark.parametrize("cuts", [(1, 2), (10, 20), (28, 29), (5, 9, 17, 29), (6, 12, 18, 24)])
def test_cuts_into_three_and_five_give_the_same_tokens(
    cuts: tuple[int, ...], uncut: list[tuple[list[int], list[float]]]
) -> None:
    """Uneven ones as well."""
    assert answers(whole_model().pipeline(*cuts)) == uncut


@pytest.mark.parametrize("options", [{"chunk_tokens": 1}, {"chunk_tokens": 7}, {"max_sequences": 1}])
def test_neither_chunks_nor_company_change_a_token(
    options: dict[str, int], uncut: list[tuple[list[int], list[float]]]
) -> None:
    """A prompt in chunks of 1 or 7 tokens, or all alone."""
    assert answers(whole_model().pipeline(13, **options)) == uncut


def test_preemption_changes_no_token(uncut: list[tuple[list[int], list[float]]]) -> None:
    """A pool so small that sequences must make way and be computed again."""
    pipeline = whole_model().pipeline(15, num_blocks=5)
    sequences = [request(f"more-{i}", PROMPT[: 10 + i], 20, GREEDY) for i in range(3)]
    pipeline.start(*sequences)
    assert answers(pipeline) == uncut
    stage_epoch = pipeline.cores[0].stage_epoch
    assert stage_epoch is not None
    assert stage_epoch.head is not None
    assert stage_epoch.head.scheduler.num_preemptions > 0
    assert [store.num_free for store in pipeline.stores] == [5, 5]


@pytest.mark.parametrize("cut", [1, 13, 29])
def test_cuts_give_the_same_tokens_on_pytorch(cut: int) -> None:
    """The general path, at the ends and in the middle."""
    whole = whole_model("bf16")
    assert answers(whole.pipeline(cut)) == answers(whole.pipeline())


@pytest.mark.parametrize(
    "precision", [*dict.fromkeys([DEFAULT_PRECISION, "bf16"]), pytest.param("f32", marks=pytest.mark.slow)]
)
def test_rows_are_exact(precision: str) -> None:
    """Logits of 300 tokens at once, in chunks, one by one, in company, and in shuffled blocks: bit for bit."""
    model = whole_model(precision)
    stage = model.stage(0, NUM_LAYERS, num_blocks=128)
    rng = np.random.default_rng(7)
    token_ids = rng.integers(0, 49152, 300).astype(np.int32)

    def run(chunks: list[int], table: np.ndarray, company: bool = False) -> np.ndarray:
        out, position = [], 0
        for num in chunks:
            slices = [SequenceRows(0, num, position, table)]
            ids = token_ids[position : position + num]
            if company:
                slices.append(SequenceRows(num, 5, 0, np.array([127], dtype=np.int32)))
                ids = np.concatenate([ids, rng.integers(0, 49152, 5).astype(np.int32)])
            out.append(stage.forward(Batch.of(ids, slices, list(range(num))), None))
            position += num
        return np.concatenate(out)

    blocks = rng.permutation(120).astype(np.int32)
    whole = run([300], blocks[:20])
    assert np.array_equal(whole, run([1, 31, 32, 33, 100, 1, 102], blocks[20:40]))
    assert np.array_equal(whole, run([100, 200], blocks[40:60], company=True))
    assert np.array_equal(whole[:24], run([1] * 24, blocks[60:80]))
    assert np.array_equal(whole[:40], run([8] * 5, blocks[80:100], company=True))
