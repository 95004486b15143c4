"""Cards from model files: the vocabulary as it is, the tokens that end an answer, defects by their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.model_files import TOKENS, Value, write_model

from stagewire.model.card import build_card
from stagewire.model.gguf import GgufFile
from stagewire.wire.card import ModelCard
from stagewire.wire.errors import ErrorCode, ModelError
from stagewire.wire.sampling import UNTOLD_SAMPLING

KEY = "tokenizer.ggml."
BOS, EOS, ADD_BOS = f"{KEY}bos_token_id", f"{KEY}eos_token_id", f"{KEY}add_bos_token"
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
Changes = dict[str, Value | None]


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
    assert [card.tokenizer.tokens[i] for i in card.stop_token_ids] == ["<|endoftext|>", "<|im_end|>", "<reponame>"]
    assert card.chat_template is not None
    assert ModelCard.decode(card.encode()) == card


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({}, (0, 2)),
        ({"tokenizer.ggml.eos_token_id": 0}, (0, 2)),  # <|im_end|> ends a turn, whatever the file says
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 1}, (0, 1, 2)),
        ({"tokenizer.ggml.eom_token_id": 5, "tokenizer.ggml.fim_pad_token_id": 6}, (0, 2, 5, 6)),
        ({"tokenizer.ggml.eos_token_ids": [2, 7]}, (0, 2, 7)),
        ({"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.token_type": [1] * len(TOKENS)}, (0, 2)),
        ({"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.tokens": ["x"] * len(TOKENS)}, ()),
    ],
)
def test_stop_tokens_are_those_that_the_file_names_and_those_that_end_a_turn_by_their_text(
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
    assert card.sampling == UNTOLD_SAMPLING


def vocabulary(
    tokens: dict[int, str], changes: dict[str, Value | None], kind: int = CONTROL
) -> dict[str, Value | None]:
    """Changes that give these ids these texts and this type, others ordinary ones; no key names any of them."""
    texts = [tokens.get(index, f"t{index}") for index in range(len(TOKENS))]
    types = [kind if index in tokens else NORMAL for index in range(len(TOKENS))]
    silent: dict[str, Value | None] = dict.fromkeys((BOS, EOS, ADD_BOS), None)
    return silent | {f"{KEY}tokens": texts, f"{KEY}token_type": types} | changes


@pytest.mark.parametrize(
    ("tokens", "changes", "stops"),
    [
        # Llama 3, whose file names <|end_of_text|>; Phi 3; Gemma; DeepSeek; Mistral; Granite; Kimi.
        ({5: "<|end_of_text|>", 6: "<|eot_id|>", 7: "<|eom_id|>", 8: "<|start_header_id|>"}, {EOS: 5}, (5, 6, 7)),
        ({3: "<|end|>", 4: "<|endoftext|>", 5: "<|user|>"}, {EOS: 4}, (3, 4)),
        ({1: "<eos>", 2: "<bos>", 9: "<end_of_turn>", 8: "<start_of_turn>"}, {EOS: 1}, (1, 9)),
        ({1: "<｜end▁of▁sentence｜>", 2: "<｜begin▁of▁sentence｜>"}, {}, (1,)),  # noqa: RUF001
        ({1: "<s>", 2: "</s>"}, {f"{KEY}model": "llama"}, (2,)),
        ({3: "<|end_of_text|>", 4: "<|end_of_role|>"}, {}, (3,)),
        ({3: "[EOS]", 4: "[EOT]", 5: "[BOS]"}, {}, (3, 4)),
        # Harmony's <|end|> ends a part of a turn only, and Gemma 4's </s> is left from another model.
        ({3: "<|end|>", 4: "<|return|>", 5: "<|call|>", 6: "<|start|>"}, {}, (4, 5)),
        ({3: "<|end|>", 4: "<|return|>"}, {}, (3, 4)),
        ({3: "</s>", 4: "<|tool_response>"}, {}, (4,)),
    ],
)
def test_a_token_ends_a_turn_by_what_it_is(
    tokens: dict[int, str], changes: dict[str, Value | None], stops: tuple[int, ...], tmp_path: Path
) -> None:
    """Whatever else the file names, and whether it calls it control or its maker's own."""
    for number, kind in enumerate((CONTROL, USER_DEFINED)):
        (tmp_path / str(number)).mkdir()
        assert card_of(tmp_path / str(number), vocabulary(tokens, changes, kind)).stop_token_ids == stops


@pytest.mark.parametrize("text", ["</s>", "<eos>", "[EOS]", "<PAD>"])
def test_ordinary_text_ends_nothing_unless_the_file_says_so(text: str, tmp_path: Path) -> None:
    """A model may write HTML."""
    assert card_of(tmp_path, vocabulary({4: text}, {}, NORMAL)).stop_token_ids == ()
    assert card_of(tmp_path, vocabulary({4: text}, {f"{KEY}eot_token_id": 4}, NORMAL)).stop_token_ids == (4,)
    assert card_of(tmp_path, vocabulary({4: text}, {f"{KEY}token_type": None})).stop_token_ids == (4, 11)


@pytest.mark.parametrize(
    ("model", "pre", "add_bos"),
    [
        ("gpt2", "llama-bpe", True),
        ("gpt2", "llama3", True),
        ("gpt2", "tekken", True),
        ("gpt2", "chameleon", True),
        ("gpt2", "smollm", False),
        ("gpt2", "qwen2", False),
        ("gpt2", "gpt-2", False),
        ("gpt2", None, False),
        ("llama", None, True),
        ("llama", "llama-bpe", True),
        ("bert", None, True),
        ("t5", None, False),
        ("rwkv", "llama-bpe", False),
        ("nobody knows", None, False),
    ],
)
def test_where_a_file_does_not_say_whether_prompts_begin_with_the_start_token_its_kind_does(
    model: str, pre: str | None, add_bos: bool, tmp_path: Path
) -> None:
    """As in llama.cpp; and what it says counts."""
    kind: dict[str, Value | None] = {f"{KEY}model": model, f"{KEY}pre": pre}
    for told, expected in ((None, add_bos), (True, True), (False, False)):
        (tmp_path / str(told)).mkdir()
        card = card_of(tmp_path / str(told), kind | {ADD_BOS: told})
        assert card.tokenizer is not None
        assert card.tokenizer.add_bos is expected


@pytest.mark.parametrize(
    ("model", "pre", "special", "bos", "eos"),
    [
        ("llama", "default", {1, 2}, 1, 2),
        ("llama", "default", {2}, None, 2),  # the file says that 1 is ordinary
        ("gpt2", "gpt-2", {11}, 11, 11),
        ("gpt2", "gpt-2", {1, 2}, None, None),
        ("gpt2", "glm4", {11}, None, 11),
        ("t5", "default", {1, 2}, None, 1),
        ("rwkv", "default", {1, 2, 11}, None, None),
    ],
)
def test_where_a_file_does_not_name_the_start_and_end_tokens_its_kind_does(
    model: str, pre: str, special: set[int], bos: int | None, eos: int | None, tmp_path: Path
) -> None:
    changes: dict[str, Value | None] = {f"{KEY}model": model, f"{KEY}pre": pre}
    card = card_of(tmp_path, vocabulary({token_id: f"<{token_id}>" for token_id in special}, changes))
    assert card.tokenizer is not None
    assert (card.tokenizer.bos_token_id, card.tokenizer.eos_token_id) == (bos, eos)
    assert card.stop_token_ids == (() if eos is None else (eos,))


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
        ({"tokenizer.ggml.add_bos_token": "yes"}, "add_bos_token='yes' is neither true nor false"),
        ({"tokenizer.ggml.eos_token_id": [1, 2]}, "eos_token_id is a list"),
        ({"tokenizer.ggml.eos_token_ids": ["x"]}, "eos_token_ids is not an array of integers"),
        ({"tokenizer.ggml.add_bos_token": [1]}, "neither true nor false"),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token=1 is neither"),
        ({"tokenizer.ggml.eom_token_id": 1 << 20}, "stop_token_ids=1048576"),
        ({"tokenizer.ggml.tokens": ["t"] * 15, "tokenizer.ggml.token_type": [1] * 15}, "15 tokens exceed"),
    ],
)
def test_a_defect_of_the_vocabulary_is_named(changes: dict[str, Value | None], defect: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=defect) as caught:
        card_of(tmp_path, changes)
    assert caught.value.code is ErrorCode.MODEL_FILE_INVALID
