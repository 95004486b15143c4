"""Cards from model files: the vocabulary as it is, the tokens that end an answer, defects by their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.model_files import TOKENS, Value, write_model

from stagewire.model.card import build_card
from stagewire.model.gguf import GgufFile
from stagewire.wire.card import ModelCard
from stagewire.wire.errors import ErrorCode, ModelError


def card_of(folder: Path, changes: dict[str, Value | None]) -> ModelCard:
    with GgufFile.open(write_model(folder / "m.gguf", changes)) as opened:
        return build_card(opened, "small")


def test_the_default_models_card_is_complete_and_survives_the_wire(gguf_file: GgufFile) -> None:
    card = build_card(gguf_file, "smollm2-135m")
    assert card.tokenizer is not None
    assert (card.tokenizer.model, card.tokenizer.pre) == ("gpt2", "smollm")
    assert (len(card.tokenizer.tokens), len(card.tokenizer.merges)) == (49152, 48900)
    assert (card.tokenizer.bos_token_id, card.tokenizer.eos_token_id) == (1, 2)
    assert not card.tokenizer.add_bos
    assert card.stop_token_ids == (2,)
    assert card.chat_template is not None
    assert ModelCard.decode(card.encode()) == card


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({}, (2,)),
        ({"tokenizer.ggml.eos_token_id": 0}, (0, 2)),  # <|im_end|> ends a turn, whatever the file says
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 1}, (0, 1, 2)),
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.token_type": [1] * len(TOKENS)}, (0,)),
        ({"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.tokens": ["x"] * len(TOKENS)}, ()),
    ],
)
def test_stop_tokens_are_the_end_of_sequence_of_turn_and_of_message(
    changes: dict[str, Value | None], stops: tuple[int, ...], tmp_path: Path
) -> None:
    assert card_of(tmp_path, changes).stop_token_ids == stops


def test_a_file_without_a_vocabulary_gives_a_card_without(tmp_path: Path) -> None:
    absent: dict[str, Value | None] = {
        f"tokenizer.ggml.{key}": None for key in ("model", "pre", "tokens", "token_type", "merges", "bos_token_id")
    }
    card = card_of(tmp_path, absent)
    assert card.tokenizer is None
    assert card.chat_template is None
    assert card.stop_token_ids == (2,)


def test_a_vocabulary_of_another_kind_is_carried_all_the_same(tmp_path: Path) -> None:
    card = card_of(tmp_path, {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": None})
    assert card.tokenizer is not None
    assert (card.tokenizer.model, card.tokenizer.pre) == ("llama", "default")


@pytest.mark.parametrize(
    ("changes", "defect"),
    [
        ({"tokenizer.ggml.token_type": [1]}, "1 token_types"),
        ({"tokenizer.ggml.token_type": [300] * len(TOKENS)}, r"range\(0, 256\)"),
        ({"tokenizer.ggml.token_type": ["1"] * len(TOKENS)}, "not an array of integers"),
        ({"tokenizer.ggml.tokens": [1] * len(TOKENS)}, "not an array of texts"),
        ({"tokenizer.ggml.model": None}, r"tokenizer\.ggml\.model is missing"),
        ({"tokenizer.ggml.eos_token_id": 1 << 20}, "eos_token_id=1048576"),
        ({"tokenizer.ggml.eot_token_id": 1 << 20}, "stop_token_ids=1048576"),
        ({"tokenizer.ggml.bos_token_id": "one"}, "bos_token_id='one'"),
        ({"tokenizer.ggml.tokens": ["t"] * 15, "tokenizer.ggml.token_type": [1] * 15}, "15 tokens exceed"),
    ],
)
def test_a_defect_of_the_vocabulary_is_named(changes: dict[str, Value | None], defect: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=defect) as caught:
        card_of(tmp_path, changes)
    assert caught.value.code is ErrorCode.MODEL_FILE_INVALID
