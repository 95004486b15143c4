"""Random numbers: what the written rule says, to the bit, and another one for any other place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.random_numbers import philox4x64, reference_uniform

from stagewire.stage.tail.philox import Place, uniform
from stagewire.wire.prompt_digest import prompt_digest
from stagewire.wire.tensor import TokenIds

WORDS = st.integers(0, 2**64 - 1)
PROMPTS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0,) * 2, (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)),
        (
            (2**64 - 1,) * 4,
            (2**64 - 1,) * 2,
            (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
        ),
        (
            (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
            (0x452821E638D01377, 0xBE5466CF34E90C6C),
            (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
        ),
    ],
)
def test_the_plain_generator_gives_the_authors_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    """Those that come with Random123, the implementation by the authors of the paper."""
    assert philox4x64(counter, key) == words


@given(WORDS, PROMPTS, st.integers(0, 2**64 - 2), WORDS)
def test_a_number_is_what_the_plain_generator_gives(
    seed: int, prompt: list[int], position: int, choice_index: int
) -> None:
    """For every seed, prompt, position and choice; the plain one knows only what PROTOCOL.md says."""
    place = Place(prompt_digest(TokenIds.of(prompt)), choice_index, position)
    assert uniform(seed, place) == reference_uniform(seed, prompt, position, choice_index)


def test_numbers_are_fixed() -> None:
    """No release changes them; both generators."""
    expected = [0.6002649159094309, 0.17970784326898215, 0.7316174874410152]
    asked = [(0, [], 0, 0), (7, [504, 3575, 282], 3, 0), (2**64 - 1, [49151], 8191, 2)]
    assert [reference_uniform(*one) for one in asked] == expected
    assert [uniform(s, Place(prompt_digest(TokenIds.of(ids)), i, p)) for s, ids, p, i in asked] == expected


def test_whatever_differs_in_a_place_makes_other_numbers() -> None:
    """Prompts that differ in one token, in order or in length; choices; positions; seeds."""
    prompts = [[], [0], [0, 0], [1, 2, 3], [3, 2, 1], [1, 2, 4], [1, 2, 3, 0], [2**31 - 1]]
    numbers = {
        uniform(seed, Place(prompt_digest(TokenIds.of(prompt)), choice_index, position))
        for seed in (0, 1, 2**63)
        for prompt in prompts
        for choice_index in range(4)
        for position in range(25)
    }
    assert len(numbers) == 3 * len(prompts) * 4 * 25


@pytest.mark.parametrize("varied", ["prompt", "choice_index", "position", "seed"])
def test_numbers_along_any_axis_are_uniform_and_independent(varied: str) -> None:
    """4,000 of each: chi-square over 64 bins (63 degrees of freedom) and the correlation of neighbours, p > 0.001."""
    axis = range(4000)
    fixed = prompt_digest(TokenIds.of([7, 8]))
    numbers = np.array(
        [
            uniform(
                i if varied == "seed" else 42,
                Place(
                    prompt_digest(TokenIds.of([i, 8])) if varied == "prompt" else fixed,
                    i if varied == "choice_index" else 0,
                    i if varied == "position" else 2,
                ),
            )
            for i in axis
        ]
    )
    counts = np.bincount((numbers * 64).astype(int), minlength=64)
    assert float(((counts - 62.5) ** 2 / 62.5).sum()) < 103.4
    assert abs(float(np.corrcoef(numbers[:-1], numbers[1:])[0, 1])) < 3.3 / np.sqrt(len(numbers))
