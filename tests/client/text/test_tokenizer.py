"""Token ids: llama.cpp's for every golden text, text again for every id, and unknown vocabularies by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.text_cards import BYTE, CONTROL, USER_DEFINED, tiny_card

from stagewire.client.text.tokenizer import Tokenizer
from stagewire.model.card import build_card
from stagewire.model.gguf import GgufFile
from stagewire.wire.card import ModelCard
from stagewire.wire.errors import ErrorCode, ModelError, RequestRefused


class Golden(TypedDict):
    """A text and llama.cpp's ids for it, without and with special tokens parsed."""

    text: str
    ids: list[int]
    ids_parse_special: list[int]


GOLDENS: list[Golden] = json.loads((Path(__file__).parents[2] / "data" / "smollm2_tokenizer.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def smollm2(gguf_file: GgufFile) -> Tokenizer:
    return Tokenizer(build_card(gguf_file, "smollm2-135m"))


@pytest.mark.parametrize("golden", GOLDENS, ids=[ascii(golden["text"]) for golden in GOLDENS])
def test_golden_texts_have_llama_cpps_ids_and_come_back(golden: Golden, smollm2: Tokenizer) -> None:
    assert smollm2.encode(golden["text"]) == golden["ids"]
    assert smollm2.encode(golden["text"], parse_special=True) == golden["ids_parse_special"]
    assert smollm2.decode(golden["ids"]) == golden["text"]
    assert smollm2.decode(golden["ids_parse_special"], skip_special=False) == golden["text"]


def test_the_goldens_are_all_there() -> None:
    assert len(GOLDENS) == 40
    assert any(golden["ids"] != golden["ids_parse_special"] for golden in GOLDENS)


@given(st.text())
def test_any_text_survives(text: str) -> None:
    tokenizer = Tokenizer(tiny_card(merges=["Ġ a", "a b"]))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_are_parsed_only_on_demand_and_hidden_unless_asked_for() -> None:
    tokenizer = Tokenizer(tiny_card([("<|end|>", CONTROL), ("<|end|>x", CONTROL)]))
    end, longer = 256, 257
    assert tokenizer.encode("a<|end|>", parse_special=True)[1:] == [end]
    assert tokenizer.encode("<|end|>x<|end|>", parse_special=True) == [longer, end]
    assert end not in tokenizer.encode("a<|end|>")
    assert tokenizer.decode(tokenizer.encode("a<|end|>")) == "a<|end|>"
    assert tokenizer.decode([end]) == ""
    assert tokenizer.decode([end], skip_special=False) == "<|end|>"
    assert tokenizer.token_bytes(end) == b"<|end|>"


def test_user_defined_tokens_are_always_parsed_and_always_shown() -> None:
    tokenizer = Tokenizer(tiny_card([("<tool é>", USER_DEFINED)]))
    assert tokenizer.encode("<tool é>") == [256]
    assert tokenizer.decode([256]) == "<tool é>"


def test_byte_tokens_and_padding_rows_have_their_bytes_and_none() -> None:
    tokenizer = Tokenizer(tiny_card([("<0xE2>", BYTE)], padding=2))
    assert tokenizer.token_bytes(256) == b"\xe2"
    assert tokenizer.token_bytes(257) == tokenizer.token_bytes(258) == b""


@pytest.mark.parametrize("token_id", [-1, 257, 1 << 40])
def test_an_id_outside_the_vocabulary_is_refused(token_id: int) -> None:
    tokenizer = Tokenizer(tiny_card(padding=1))
    for use in (tokenizer.token_bytes, tokenizer.visible_bytes, lambda bad: tokenizer.decode([bad])):
        with pytest.raises(RequestRefused, match=f"{token_id} is outside the vocabulary of 257") as caught:
            use(token_id)
        assert caught.value.code is ErrorCode.TOKEN_OUT_OF_VOCABULARY


def test_a_prompt_begins_with_the_start_token_once_where_the_model_expects_one() -> None:
    tokenizer = Tokenizer(tiny_card([("<s>", CONTROL)], bos="<s>"))
    assert tokenizer.encode("", as_prompt=True) == [256]
    assert tokenizer.encode("<s>", parse_special=True, as_prompt=True) == [256]
    assert tokenizer.encode("") == []
    assert Tokenizer(tiny_card([("<s>", CONTROL)])).encode("", as_prompt=True) == []


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(RequestRefused, match="surrogate"):
        Tokenizer(tiny_card()).encode("a\ud800b")


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["don", "'t", " ", "1", "2", "3", "4"]),
        ("gpt-2", ["don", "'t", " 1234"]),
        ("llama-bpe", ["don", "'t", " ", "123", "4"]),
        ("qwen2", ["don", "'t", " ", "1", "2", "3", "4"]),
    ],
)
def test_each_splitter_keeps_merges_within_its_pieces(pre: str, pieces: list[str]) -> None:
    """With merges for every prefix of the text, a token is as long as the splitter lets it be."""
    merges = ["d o", "do n", "don '", "' t", "Ġ 1", "Ġ1 2", "Ġ12 3", "Ġ123 4", "1 2", "12 3", "123 4"]
    tokenizer = Tokenizer(tiny_card(merges=merges, pre=pre))
    assert [tokenizer.token_bytes(i).decode() for i in tokenizer.encode("don't 1234")] == pieces


def test_llama3_takes_a_piece_that_is_a_token_without_merges_and_qwen2_composes_first() -> None:
    tokens = [("abc", 1)]
    assert Tokenizer(tiny_card(tokens, pre="llama-bpe")).encode("abc") == [256]
    assert len(Tokenizer(tiny_card(tokens, pre="gpt-2")).encode("abc")) == 3
    qwen2 = Tokenizer(tiny_card(pre="qwen2"))
    assert qwen2.encode("e\N{COMBINING ACUTE ACCENT}") == qwen2.encode("é")


@pytest.mark.parametrize("name", ["abc", "Ġabc", "!!", "a"])
def test_a_piece_of_text_that_is_spelled_like_a_control_token_is_none(name: str) -> None:
    """Though a scheme takes a piece that is a token as a whole."""
    tokenizer = Tokenizer(tiny_card([(name, CONTROL)], pre="llama-bpe"))
    text = name.replace("Ġ", " ")
    assert 256 not in tokenizer.encode(f"{text} {text}")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def card_with(card: ModelCard, **changes: object) -> ModelCard:
    assert card.tokenizer is not None
    return replace(card, tokenizer=replace(card.tokenizer, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("card", "named"),
    [
        (card_with(tiny_card(), model="llama"), "tokenizer model 'llama'"),
        (card_with(tiny_card(), pre="deepseek-llm"), "splitter 'deepseek-llm'"),
        (card_with(tiny_card(), merges=("ab",)), "merge that is not two tokens: 'ab'"),
        (card_with(tiny_card(), merges=("a b",)), "contradicts itself"),
        (replace(tiny_card(), tokenizer=None), "'tiny' comes without a vocabulary"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_refused_by_name(card: ModelCard, named: str) -> None:
    with pytest.raises(ModelError, match=named) as caught:
        Tokenizer(card)
    assert caught.value.code is ErrorCode.UNSUPPORTED_TOKENIZER
    assert "token ids still work" in caught.value.detail
