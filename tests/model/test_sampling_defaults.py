"""How a model wants to be sampled: by its file, the one beside it, the catalogue; what cannot be used is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.model_files import METADATA, Value, write_model

from stagewire.model.card import build_card
from stagewire.model.catalogue import CATALOGUE
from stagewire.model.gguf import GgufFile
from stagewire.wire.card import ModelCard
from stagewire.wire.sampling import UNTOLD_SAMPLING, SamplingParams

KEY = "general.sampling."
RECOMMENDED = SamplingParams(temperature=0.3)


def card_of(folder: Path, changes: dict[str, Value | None], recommended: SamplingParams | None = None) -> ModelCard:
    return told_card(folder, changes, recommended)[0]


def told_card(
    folder: Path, changes: dict[str, Value | None], recommended: SamplingParams | None = None
) -> tuple[ModelCard, list[str]]:
    lines: list[str] = []
    with GgufFile.open(write_model(folder / "m.gguf", changes)) as opened:
        return build_card(opened, "small", recommended, lines.append), lines


def write_config(folder: Path, values: object) -> None:
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "sampling"),
    [
        ({}, UNTOLD_SAMPLING),
        (
            {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "penalty_repeat": 1.05},
            SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.05),
        ),
        ({"temp": 1.0, "top_k": 64, "top_p": 0.95}, SamplingParams(top_k=64, top_p=0.95)),
        ({"temp": 0}, SamplingParams(temperature=0)),
        ({"top_k": -1, "temp": 0.5}, SamplingParams(temperature=0.5)),
        ({"penalty_repeat": 1.3, "penalty_last_n": 0}, SamplingParams()),
        ({"penalty_repeat": 1.3, "penalty_last_n": 64}, SamplingParams(repetition_penalty=1.3)),
    ],
)
def test_the_files_keys_are_the_models_own_values(
    changes: dict[str, Value | None], sampling: SamplingParams, tmp_path: Path
) -> None:
    """As written, although the file has them as 32-bit floats; neutral where it names others only."""
    card, lines = told_card(tmp_path, {f"{KEY}{name}": value for name, value in changes.items()})
    assert card.sampling == sampling
    assert lines == []
    assert ModelCard.decode(card.encode()) == card


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("temp", -1.0, "ignored general.sampling.temp: temperature=-1.0 is not a number in [0, 100]"),
        ("temp", float("nan"), "ignored general.sampling.temp: temperature=nan is not a number in [0, 100]"),
        ("temp", "warm", "ignored general.sampling.temp: temperature='warm' is not a number in [0, 100]"),
        ("temp", True, "ignored general.sampling.temp: temperature=True is not a number in [0, 100]"),
        ("temp", [1, 2], "ignored general.sampling.temp: a list is not a number"),
        ("top_k", -7, "ignored general.sampling.top_k: top_k=-7 is not an integer in [0, 16777216]"),
        ("top_k", 3.5, "ignored general.sampling.top_k: top_k=3.5 is not an integer in [0, 16777216]"),
        ("top_p", 0.0, "ignored general.sampling.top_p: top_p=0.0 is not a number in (0, 1]"),
        ("min_p", float("inf"), "ignored general.sampling.min_p: min_p=inf is not a number in [0, 1]"),
        ("penalty_repeat", 0, "ignored general.sampling.penalty_repeat: repetition_penalty=0 is not a number"),
        ("mirostat", 2, "ignored general.sampling.mirostat=2: there is no such way of sampling here"),
    ],
)
def test_a_value_that_cannot_be_used_is_left_out_and_named(name: str, value: Value, line: str, tmp_path: Path) -> None:
    """Alone it says nothing, and it takes nothing from the others."""
    card, lines = told_card(tmp_path, {f"{KEY}{name}": value})
    assert card.sampling == UNTOLD_SAMPLING
    assert [told[: len(line)] for told in lines] == [line]
    other = "top_p" if name != "top_p" else "min_p"
    expected = SamplingParams(top_p=0.5) if other == "top_p" else SamplingParams(min_p=0.5)
    assert card_of(tmp_path, {f"{KEY}{name}": value, f"{KEY}{other}": 0.5}).sampling == expected


@pytest.mark.parametrize(
    ("values", "sampling", "stops"),
    [
        (
            {"eos_token_id": [2, 5], "temperature": 0.6, "top_p": 0.9},
            SamplingParams(temperature=0.6, top_p=0.9),
            (0, 2, 5),
        ),
        ({"do_sample": True, "top_k": 50, "temperature": None}, SamplingParams(top_k=50), (0, 2)),
        ({"do_sample": False, "temperature": 0.9}, SamplingParams(temperature=0), (0, 2)),
        ({"repetition_penalty": 1.2, "eos_token_id": 2}, SamplingParams(repetition_penalty=1.2), (0, 2)),
        ({"eos_token_id": [2, 7], "max_length": 100}, UNTOLD_SAMPLING, (0, 2, 7)),
    ],
)
def test_a_generation_config_beside_the_file_says_the_same(
    values: dict[str, object], sampling: SamplingParams, stops: tuple[int, ...], tmp_path: Path
) -> None:
    """With more end tokens; what the file itself recommends comes first."""
    write_config(tmp_path, values)
    card, lines = told_card(tmp_path, {})
    assert (card.sampling, card.stop_token_ids, lines) == (sampling, stops, [])
    assert card_of(tmp_path, {f"{KEY}temp": 0.1}).sampling == SamplingParams(temperature=0.1)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "Expecting property name"),
        ("[1, 2]", "it is not an object"),
        ("[" * 100_000, "recursion"),
        ("\xff".encode("latin-1"), "utf-8"),
        ('{"temperature": NaN}', "temperature=nan"),
        ('{"temperature": "0.7"}', "temperature='0.7'"),
        ('{"temperature": -1}', "temperature=-1"),
        ('{"top_k": 1e400}', "top_k=inf"),
        ('{"eos_token_id": [2, 99, true, "x"]}', "eos_token_id=99 is no token"),
        ('{"eos_token_id": 5, "temperature": 0.2}', "does not have the model file's end token 2"),
        (" " * (1 << 20) + "{}", "longer than 1048576 bytes"),
    ],
)
def test_a_generation_config_that_cannot_be_used_is_named(content: str | bytes, word: str, tmp_path: Path) -> None:
    """And the model is served all the same."""
    (tmp_path / "generation_config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    card, lines = told_card(tmp_path, {})
    assert (card.sampling, card.stop_token_ids) == (UNTOLD_SAMPLING, (0, 2))
    assert lines
    assert all(line.startswith("ignored ") for line in lines)
    assert word in lines[0]


def test_a_generation_config_that_is_no_file_is_none(tmp_path: Path) -> None:
    """A pipe would be read for ever."""
    os.mkfifo(tmp_path / "generation_config.json")
    assert told_card(tmp_path, {}) == (card_of(tmp_path, {}), [])


def test_the_catalogue_speaks_where_the_files_are_silent(tmp_path: Path) -> None:
    assert card_of(tmp_path, {}, RECOMMENDED).sampling == RECOMMENDED
    assert card_of(tmp_path, {f"{KEY}top_k": 5}, RECOMMENDED).sampling == SamplingParams(top_k=5)
    assert all(entry.sampling is not None for entry in CATALOGUE.values())
    assert not any(key.startswith(KEY) for key in METADATA)
