"""Blocks in files: they come back after a restart, never wrong, never mixed up, and never at a request's cost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.in_process import InProcessPipeline, request
from support.toy_operators import VOCAB_SIZE, ToyOperators, expected_tokens
from support.whole_model import whole_model

from stagewire.stage.files.block_file import (
    BlockFile,
    BlockFileError,
    StoredBlock,
    decode_block,
    encode_block,
    is_block_name,
    newest_chains,
)
from stagewire.stage.files.disk_tier import DiskTier
from stagewire.stage.kv.prefix_index import ROOT, chain_hash
from stagewire.wire.errors import SettingsError
from stagewire.wire.file_orders import FileAction
from stagewire.wire.ring import Step
from stagewire.wire.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
CUTS = [(0, 2), (2, 6)]
PROMPTS = [[(number + 3) * (i + 1) % VOCAB_SIZE for i in range(60 + number)] for number in range(8)]
BUDGET = 1 << 30


def serve(directory: Path, budget_bytes: int = BUDGET, weights: int = 0, num_blocks: int = 200) -> InProcessPipeline:
    """Two stages that share a directory, as after a start of all processes."""
    operators = [ToyOperators(*cut, 6, num_blocks) for cut in CUTS]
    tiers = [DiskTier(directory, budget_bytes) for _ in CUTS]
    return InProcessPipeline(operators, 2, VOCAB_SIZE, weights=weights, tiers=tiers)


def stop(pipeline: InProcessPipeline) -> None:
    """In order: what waits is written."""
    for disk in pipeline.disks:
        disk.close()


def ask_all(pipeline: InProcessPipeline, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[int]:
    """Cached tokens of each prompt, one after the other, whose answers are right."""
    cached = []
    for prompt in prompts:
        name = f"r{len(pipeline.outputs)}"
        pipeline.start(request(name, prompt, 3, GREEDY))
        output = pipeline.run()[name]
        assert output.token_ids == expected_tokens(list(prompt), 3, 6)
        assert output.ending is not None
        cached.append(output.ending.usage.cached_tokens)
    return cached


def block_of(depth: int = 0, before: bytes = ROOT, content: bytes = b"c" * 100) -> StoredBlock:
    token_bytes = bytes([depth]) * 64
    return StoredBlock(b"n" * 16, before, chain_hash(before, token_bytes), depth, token_bytes, content)


# --- the file ---


def test_a_block_survives_the_way_into_a_file_and_back() -> None:
    block = block_of(3, b"b" * 16)
    assert decode_block(encode_block(block), block.name) == block


def test_a_file_that_is_not_what_it_should_be_is_no_block() -> None:
    """Any flipped bit, any missing end, another block's name, another file altogether."""
    block, rng = block_of(), random.Random(1)
    data = encode_block(block)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << rng.randrange(8)
        with pytest.raises(BlockFileError):
            decode_block(bytes(flipped), block.name)
    for length in (0, 10, len(data) - 1):
        with pytest.raises(BlockFileError):
            decode_block(data[:length], block.name)
    for name in ("x.kv", replace(block, numerics=b"m" * 16).name):
        with pytest.raises(BlockFileError):
            decode_block(data, name)
    with pytest.raises(BlockFileError):
        decode_block(encode_block(replace(block, token_bytes=b"other...")), block.name)


def test_the_chains_written_last_come_first_and_beginnings_before_their_ends() -> None:
    """Though a beginning is older than what hangs on it: an end alone is of no use."""

    def file(before: int, chain: int, written_ns: int) -> BlockFile:
        return BlockFile(f"{7:032x}-{before:032x}-{chain:032x}.kv", written_ns, 1)

    root, old, young = file(0, 1, 10), file(1, 2, 20), file(1, 3, 40)
    other, orphan = file(0, 5, 30), file(8, 9, 35)
    assert newest_chains([old, orphan, other, young, root]) == [root, young, orphan, other, old]
    assert is_block_name(root.name) and young.parent == root.key
    assert not is_block_name("x" + root.name) and not is_block_name(root.name + ".bad")


# --- restarts ---


def test_a_restart_of_everything_finds_the_blocks_and_gives_the_same_tokens(tmp_path: Path) -> None:
    """Both stages, all prompts, to the last token before the end."""
    first = serve(tmp_path)
    assert sum(ask_all(first)) == 0
    stop(first)
    second = serve(tmp_path)
    assert ask_all(second) == [len(prompt) - 1 for prompt in PROMPTS]
    for store in second.stores:
        store.check_invariants()
    stop(second)


def test_what_was_drained_is_there_without_an_orderly_stop(tmp_path: Path) -> None:
    """A killed process has written what its writer had been given; nothing is half there."""
    first = serve(tmp_path)
    ask_all(first)
    for disk in first.disks:
        while disk.has_work:
            disk.pump()
        assert disk.tier.drain(10)
    second = serve(tmp_path)
    assert ask_all(second) == [len(prompt) - 1 for prompt in PROMPTS]
    stop(first)
    stop(second)


def test_other_weights_under_the_same_name_find_nothing(tmp_path: Path) -> None:
    """And leave the files of the others alone."""
    first = serve(tmp_path)
    ask_all(first)
    stop(first)
    other = serve(tmp_path, weights=1)
    assert sum(ask_all(other)) == 0
    stop(other)
    again = serve(tmp_path)
    assert ask_all(again) == [len(prompt) - 1 for prompt in PROMPTS]
    stop(again)


def test_flipped_bytes_in_fifty_files_are_set_aside_and_never_give_a_wrong_token(tmp_path: Path) -> None:
    """Some prompts find less; every answer is right, and the next start finds nothing of the damage any more."""
    first = serve(tmp_path)
    ask_all(first)
    stop(first)
    rng = random.Random(2)
    files = sorted(tmp_path.glob("*.kv"))
    for path in rng.sample(files, 50):
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 0x10
        path.write_bytes(data)
    second = serve(tmp_path)
    assert sum(ask_all(second)) < sum(len(prompt) - 1 for prompt in PROMPTS)
    assert sum(disk.counts().num_set_aside for disk in second.disks) > 0
    stop(second)
    for _ in range(9):  # a damaged file is met by whoever wants what is before it
        again = serve(tmp_path)
        ask_all(again)
        num_met = sum(disk.counts().num_set_aside for disk in again.disks)
        stop(again)
        if not num_met:
            break
    last = serve(tmp_path)
    assert ask_all(last) == [len(prompt) - 1 for prompt in PROMPTS]
    assert sum(disk.counts().num_set_aside for disk in last.disks) == 0
    stop(last)


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    """Whatever else lies in the directory is not read, not counted and not deleted."""
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder.d").mkdir()
    pipeline = serve(tmp_path)
    ask_all(pipeline)
    stop(pipeline)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.timeout(300)
def test_blocks_of_the_real_model_come_back_bit_for_bit(tmp_path: Path) -> None:
    """Tokens and log probabilities equal those of the process that computed them."""
    sampling = SamplingParams(temperature=0.7, seed=5, logprobs=1)
    prompt, answers = [300 + 7 * i for i in range(40)], []
    for expected in (0, 39):
        model = whole_model("bf16")
        operators = [model.stage(0, 11, 16), model.stage(11, 30, 16)]
        tiers = [DiskTier(tmp_path, BUDGET) for _ in operators]
        pipeline = InProcessPipeline(operators, model.config.hidden_size, model.config.vocab_size, tiers=tiers)
        pipeline.start(request("r", prompt, 4, sampling))
        output = pipeline.run()["r"]
        assert output.ending is not None and output.ending.usage.cached_tokens == expected
        answers.append((output.token_ids, output.logprobs))
        stop(pipeline)
    assert answers[0] == answers[1]


# --- limits and failures ---


def test_the_directory_stays_within_its_budget_and_the_oldest_files_go(tmp_path: Path) -> None:
    """Whoever wrote them: several stages share it."""
    budget_bytes = 40_000
    pipeline = serve(tmp_path, budget_bytes)
    ask_all(pipeline)
    stop(pipeline)
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 0.5 * budget_bytes < total <= 1.05 * budget_bytes
    again = serve(tmp_path, budget_bytes)
    assert ask_all(again, PROMPTS[-1:])[0] > 0
    stop(again)


def test_a_disk_that_fails_costs_a_warning_and_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The directory vanishes: as with a full or read-only disk, nothing can be written."""
    directory = tmp_path / "kv"
    pipeline = serve(directory)
    directory.rmdir()
    ask_all(pipeline)
    stop(pipeline)
    assert all(disk.tier.num_failed == 1 for disk in pipeline.disks), "then it pauses, and does not fill the log"
    assert "disk_tier_failed" in caplog.text


def test_a_directory_that_cannot_be_made_is_refused_at_the_start(tmp_path: Path) -> None:
    """The message names the setting."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="disk_directory"):
        DiskTier(tmp_path / "file" / "kv", BUDGET)


def test_two_processes_write_the_same_block_and_neither_is_hurt(tmp_path: Path) -> None:
    """One file in the end, whole."""
    tiers = [DiskTier(tmp_path, BUDGET) for _ in range(2)]
    blocks = [block_of(depth, bytes([depth]) * 16) for depth in range(100)]
    for block in blocks:
        for tier in tiers:
            tier.put(block)
    for tier in tiers:
        tier.close()
    assert [decode_block((tmp_path / block.name).read_bytes(), block.name) for block in blocks] == blocks
    assert {path.suffix for path in tmp_path.iterdir()} == {".kv"}


def test_a_smaller_pool_fetches_what_fits(tmp_path: Path) -> None:
    """Prompts that need almost all of it come back one after the other, whole."""
    first = serve(tmp_path)
    ask_all(first)
    stop(first)
    small = serve(tmp_path, num_blocks=5)
    assert ask_all(small) == [len(prompt) - 1 for prompt in PROMPTS]
    for store in small.stores:
        store.check_invariants()
        assert 0 < store.num_cached <= 5
    stop(small)


# --- while it runs ---


def orders(pipeline: InProcessPipeline) -> list[FileAction]:
    """What the second stage was told to do with files, since the last call."""
    seen = [order.action for _, m in pipeline.hops if isinstance(m, Step) for order in m.orders]
    pipeline.hops.clear()
    return seen


def test_what_has_left_the_memory_comes_back_from_the_files(tmp_path: Path) -> None:
    """A pool too small for all prompts: each is computed once, and no stage ever differs from the others."""
    pipeline = serve(tmp_path, num_blocks=6)
    ask_all(pipeline)
    for disk in pipeline.disks:
        while disk.has_work:
            disk.pump()
        assert disk.tier.drain(10)
    orders(pipeline)
    assert ask_all(pipeline) == [len(prompt) - 1 for prompt in PROMPTS]
    assert orders(pipeline) == [FileAction.FETCH] * len(PROMPTS)
    assert pipeline.stores[0].prefixes() == pipeline.stores[1].prefixes()
    assert pipeline.stores[0].statistics.fetched_tokens > 0
    assert ask_all(pipeline, PROMPTS[-1:]) == [len(PROMPTS[-1]) - 1]
    assert orders(pipeline) == [], "it is in memory now"
    stop(pipeline)


def test_a_prompt_that_files_know_only_in_part_is_computed_from_there(tmp_path: Path) -> None:
    """Its blocks in memory first, then those in files, then the rest."""
    long = [3 + 5 * i % 47 for i in range(103)]
    first = serve(tmp_path)
    ask_all(first, [long])
    stop(first)
    second = serve(tmp_path)
    assert ask_all(second, [[*long[:40], *range(9)], [*long, 1, 2, 3]]) == [32, 103]
    assert second.stores[1].statistics.fetched_tokens == 103
    third = serve(tmp_path)
    ask_all(third, [long[:20]])
    num_before = third.stores[1].statistics.fetched_tokens
    assert ask_all(third, [[*long, 4, 5]]) == [103]
    assert third.stores[1].statistics.fetched_tokens - num_before == 103 - 20, "the others were in memory"
    stop(second)
    stop(third)


def test_the_others_go_on_while_files_are_read_and_a_cancel_leaves_nothing(tmp_path: Path) -> None:
    """A request that waits for its blocks is in nobody's way, and what comes after its end is thrown away."""
    first = serve(tmp_path)
    ask_all(first)
    stop(first)
    second = serve(tmp_path)
    second.start(request("cold", [9] * 30, 4, GREEDY), request("warm", PROMPTS[5], 4, GREEDY))
    second.start(request("gone", PROMPTS[6], 4, GREEDY))
    while not second.outputs["cold"].ending:
        second.turn(0)
        second.turn(1)
    assert second.outputs["warm"].token_ids == [] and len(second.jobs) == 4
    second.cancel("gone")
    for _ in range(5):
        second.turn(0)
        second.turn(1)
    outputs = second.run()
    assert outputs["warm"].token_ids == expected_tokens(PROMPTS[5], 4, 6)
    assert outputs["gone"].ending is not None and outputs["gone"].token_ids == []
    for store, core in zip(second.stores, second.cores, strict=True):
        assert core.stage_epoch is not None
        assert store.num_used == 0 and core.stage_epoch.executor.files.num_staged == 0
    stop(second)


def test_files_that_do_not_come_in_time_are_not_waited_for(tmp_path: Path) -> None:
    """After two seconds the prompt is computed."""
    first = serve(tmp_path)
    ask_all(first)
    stop(first)
    second = serve(tmp_path)
    second.start(request("slow", PROMPTS[5], 4, GREEDY))
    for now in (1.9, 2.0):
        for _ in range(30):
            second.turn(0)
            second.turn(1)
        assert second.outputs["slow"].token_ids == [], now
        second.tick(now)
    second.jobs.clear()
    assert second.run()["slow"].token_ids == expected_tokens(PROMPTS[5], 4, 6)
    stop(second)


def test_a_stage_whose_files_are_gone_makes_all_restore_less(tmp_path: Path) -> None:
    """What one of them cannot read is computed."""
    first = serve(tmp_path)
    ask_all(first)
    stop(first)
    second = serve(tmp_path)
    numerics = second.stores[1].cache.numerics.hex()
    for path in sorted(tmp_path.glob(f"{numerics}*.kv"))[::2]:
        path.unlink()
    cached = ask_all(second)
    assert 0 < sum(cached) < sum(len(prompt) - 1 for prompt in PROMPTS)
    stop(second)
