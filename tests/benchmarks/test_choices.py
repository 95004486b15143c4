"""What is measured against what: settings of the peer, pairs, flags, the floor of a delayed pipeline, accuracy."""

from __future__ import annotations

import argparse
import os
import socket

import numpy as np
import pytest

from bench import accuracy
from bench.__main__ import NAMES, build_parser, plan_of
from bench.llama_setting import Buffers, LlamaSetting
from bench.llama_side import LlamaFailedError
from bench.machine import machine_description, versions
from bench.own import hop_bytes
from bench.peers import peers_at
from bench.prompts import PromptSource
from bench.sweep import Point, point_row
from bench.token_cost import TokenCost
from bench.tuning import Tuning
from bench.works import WORKS, Work, decode, decode_at, prefill


class FakeRates:
    """A llama.cpp of known speed: `rates` by layout, times 2 at the best size of micro-batches; 0 crashes."""

    def __init__(self, rates: dict[Buffers, float], best_ubatch: int = 512) -> None:
        self._rates, self._best_ubatch = rates, best_ubatch
        self.calls: list[tuple[LlamaSetting, str]] = []

    def __call__(self, setting: LlamaSetting, work: Work) -> float:
        self.calls.append((setting, work.name))
        rate = self._rates[setting.buffers]
        if rate == 0:
            raise LlamaFailedError("it crashed")
        return rate * (2 if setting.ubatch_tokens == self._best_ubatch else 1)


def silent(_line: str) -> None:
    pass


def test_the_peer_gets_its_fastest_layout_and_micro_batch() -> None:
    rates = FakeRates({Buffers.DEFAULT: 5, Buffers.REPACK: 9, Buffers.PLAIN: 1}, best_ubatch=2048)
    best = Tuning(rates, silent).best("file", 2, prefill(512))
    assert best == LlamaSetting(file="file", threads=2, buffers=Buffers.REPACK, ubatch_tokens=2048)


def test_a_layout_that_crashes_is_passed_over() -> None:
    """Thorough or not, as long as another works."""
    rates = FakeRates({Buffers.DEFAULT: 0, Buffers.REPACK: 0, Buffers.PLAIN: 1})
    for thorough in (True, False):
        assert Tuning(rates, silent, thorough).best("file", 1, decode(1)).buffers is Buffers.PLAIN


def test_a_peer_that_cannot_run_at_all_is_an_error() -> None:
    rates = FakeRates({Buffers.DEFAULT: 0, Buffers.REPACK: 0, Buffers.PLAIN: 0})
    for thorough in (True, False):
        with pytest.raises(LlamaFailedError):
            Tuning(rates, silent, thorough).best("file", 1, decode(1))


def test_what_was_found_for_one_sequence_holds_at_every_depth() -> None:
    """Prefills of 6,144 tokens to try each layout would take minutes."""
    rates = FakeRates({Buffers.DEFAULT: 5, Buffers.REPACK: 9, Buffers.PLAIN: 1})
    tuning = Tuning(rates, silent)
    assert tuning.best("file", 1, decode(1)) == tuning.best("file", 1, decode_at(6144))
    assert {work for _, work in rates.calls} == {"decode_1"}


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_every_work_meets_the_same_file_and_q4_0_at_equal_threads(work: Work) -> None:
    """One thread where one sequence keeps one of ours busy, two elsewhere; names are unique."""
    peers = peers_at(work, with_rpc=True)
    threads = {peer.name: peer.threads for peer in peers}
    expected = 1 if work.name.startswith("decode_1") and work.num_sequences == 1 else 2
    assert threads["llama.cpp"] == threads["llama.cpp-q4_0"] == expected
    assert len(threads) == len(peers)
    assert not any(peer.is_rpc for peer in peers_at(work, with_rpc=False))


def test_flags_choose_works_and_parts() -> None:
    plan, chosen = plan_of(build_parser().parse_args(["--only", "decode_8,own", "--runs", "7"]))
    assert [work.name for work in plan.works] == ["decode_8"]
    assert (set(chosen), plan.rules.runs, plan.rules.max_rounds) == ({"decode_8", "own"}, 7, 3)
    everything, chosen = plan_of(build_parser().parse_args([]))
    assert (everything.works, chosen, everything.rules.runs, everything.tune) == (WORKS, NAMES, 5, True)
    quick, _ = plan_of(build_parser().parse_args(["--quick"]))
    assert (quick.rules.max_rounds, quick.tune) == (1, False)


@pytest.mark.parametrize("flags", [["--only", "decode_7"], ["--runs", "0"]])
def test_flags_that_mean_nothing_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(flags)
    assert flags[0] in capsys.readouterr().err


def test_the_help_shows_examples_that_are_accepted() -> None:
    parser = build_parser()
    examples = [line.split("  ")[1] for line in (parser.epilog or "").splitlines() if "python -m bench" in line]
    assert len(examples) >= 4
    for example in examples:
        assert isinstance(parser.parse_args(example.split()[3:]), argparse.Namespace)


def test_the_floor_is_forward_passes_and_each_links_delay() -> None:
    """Four stages have three hops and the way back to the head; a single stage has no link."""
    cost = TokenCost(total_s=0.052, forward_s=0.010, sample_s=0.001)
    assert Point(4, 10).floor_s(cost) == pytest.approx(0.050)
    assert Point(2, 5).floor_s(cost) == pytest.approx(0.020)
    assert Point(1, 20).floor_s(cost) == pytest.approx(0.010)
    assert point_row(Point(4, 10), cost, 5).ratio == pytest.approx(50 / 52, rel=1e-4)
    assert point_row(Point(4, 10), cost, 5).work == "time_per_token_4x10ms"
    assert cost.overhead_s == pytest.approx(0.041)


def test_delays_are_on_every_link_of_the_ring() -> None:
    assert {link: c.delay_s for link, c in Point(4, 10).conditions.items()} == {"feed": 0.01, "hop": 0.01}
    assert Point(4, 0).conditions == {}


def test_equal_logits_have_no_divergence_and_a_shift_changes_nothing() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32)
    same = accuracy.compare(logits, logits + np.float32(3))
    assert same.kl == pytest.approx(0, abs=1e-6)
    assert same.top1 == 1.0


def test_divergence_and_agreement_of_known_distributions() -> None:
    """KL of (3/4, 1/4) from (1/2, 1/2), the expected one first, and one of two rows with another likeliest token."""
    reference = np.log(np.array([[0.75, 0.25], [0.75, 0.25]], np.float32))
    given = np.log(np.array([[0.5, 0.5], [0.25, 0.75]], np.float32))
    found = accuracy.compare(reference, given)
    first = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    second = 0.75 * np.log(3) + 0.25 * np.log(1 / 3)
    assert found.kl == pytest.approx((first + second) / 2, rel=1e-5)
    assert found.top1 == 0.5


def test_the_text_is_long_enough_and_plain(model_path: object) -> None:
    assert len(accuracy.text_token_ids(str(model_path), 768)) == 768


def test_a_hop_carries_the_activations_and_little_else() -> None:
    """float32, 576 to a token: 2,304 bytes, and less than 300 for all that surrounds them."""
    assert 4 * 576 < hop_bytes(1, 576) < 4 * 576 + 300
    assert 8 * 4 * 576 < hop_bytes(8, 576) < 8 * 4 * 576 + 600


def test_prompts_repeat_from_their_seed_and_never_within_a_run() -> None:
    first, again = PromptSource(49152, 1), PromptSource(49152, 1)
    drawn = [first.draw(16) for _ in range(20)]
    assert drawn == [again.draw(16) for _ in range(20)]
    assert len({tuple(prompt) for prompt in drawn}) == 20


def test_the_machine_is_described_without_its_name() -> None:
    described = machine_description()
    assert described.endswith(f"{os.cpu_count()} CPUs")
    assert socket.gethostname() not in described
    assert versions("AVX = 1")["llama.cpp"] == "AVX = 1"
    assert "numpy" in versions(None)
