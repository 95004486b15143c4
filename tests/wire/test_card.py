"""The model card: it survives its encoding, and no bytes of a peer raise anything but ProtocolError."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagewire.wire.card import ModelCard, ModelConfig, TokenizerData, card_digest
from stagewire.wire.errors import ProtocolError
from stagewire.wire.limits import MAX_CARD_BYTES
from stagewire.wire.sampling import SamplingParams

CONFIG = ModelConfig(
    architecture="llama",
    num_layers=30,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49152,
    context_length=8192,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
    rope_dim=64,
    tie_word_embeddings=True,
)
TOKENIZER = TokenizerData(
    model="gpt2",
    pre="smollm",
    tokens=("<|im_end|>", "a", "Ġ", "日"),
    token_types=b"\3\1\1\1",
    merges=("Ġ a",),
    bos_token_id=None,
    eos_token_id=0,
    add_bos=False,
)
CARD = ModelCard("tiny", CONFIG, TOKENIZER, "{{ messages }}", (0,))


@pytest.mark.parametrize(
    "card",
    [
        CARD,
        replace(CARD, sampling=SamplingParams(0.0, 5, 0.5, 0.25, 1.5, -1.0, 2.0)),
        replace(CARD, tokenizer=None, chat_template=None, stop_token_ids=()),
        replace(CARD, tokenizer=replace(TOKENIZER, bos_token_id=2, merges=(), add_bos=True)),
    ],
)
def test_a_card_survives_its_encoding(card: ModelCard) -> None:
    assert ModelCard.decode(card.encode()) == card


def test_equal_cards_have_equal_digests_and_a_changed_merge_changes_it() -> None:
    same = ModelCard("tiny", replace(CONFIG), replace(TOKENIZER), "{{ messages }}", (0,))
    other = replace(CARD, tokenizer=replace(TOKENIZER, merges=("a Ġ",)))
    assert card_digest(same.encode()) == card_digest(CARD.encode())
    assert card_digest(other.encode()) != card_digest(CARD.encode())
    assert card_digest(b"x") == hashlib.sha256(b"x").hexdigest()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 0),
        ("hidden_size", -1),
        ("num_kv_heads", 2),  # 9 heads do not share 2
        ("num_kv_heads", 10),
        ("head_dim", 1 << 40),
        ("rms_norm_eps", 0.0),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", float("inf")),
        ("rope_dim", 63),
        ("rope_dim", 66),
        ("architecture", ""),
    ],
)
def test_an_impossible_shape_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        replace(CONFIG, **{field: value})  # type: ignore[arg-type]


def test_vocabulary_fields_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="token_types"):
        replace(TOKENIZER, token_types=b"\1")
    with pytest.raises(ValueError, match="eos_token_id"):
        replace(TOKENIZER, eos_token_id=4)
    with pytest.raises(ValueError, match="vocab_size"):
        replace(CARD, config=replace(CONFIG, vocab_size=3))
    with pytest.raises(ValueError, match="stop_token_ids"):
        replace(CARD, stop_token_ids=(49152,))


def test_a_card_beyond_the_limit_is_neither_written_nor_read() -> None:
    with pytest.raises(ValueError, match="limit"):
        replace(CARD, chat_template="x" * MAX_CARD_BYTES).encode()
    with pytest.raises(ProtocolError, match="limit"):
        ModelCard.decode(bytes(MAX_CARD_BYTES + 1))


def test_every_truncation_and_every_trailing_byte_is_a_protocol_error() -> None:
    data = CARD.encode()
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            ModelCard.decode(data[:end])
    with pytest.raises(ProtocolError):
        ModelCard.decode(data + b"\0")


def test_another_version_of_the_card_is_named() -> None:
    message = msgpack.unpackb(CARD.encode())
    with pytest.raises(ProtocolError, match="version 1, expected 2"):
        ModelCard.decode(msgpack.packb([1, *message[1:-1]]))


def decode_or_protocol_error(data: bytes) -> None:
    """What a receiver of arbitrary bytes may see: one error type, or a card with one encoding."""
    try:
        card = ModelCard.decode(data)
    except ProtocolError:
        return
    assert ModelCard.decode(card.encode()) == card


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_the_protocol_error(data: bytes) -> None:
    decode_or_protocol_error(data)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_mutated_card_raises_only_the_protocol_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(CARD.encode())
    for position, value in changes:
        data[position % len(data)] = value
    decode_or_protocol_error(bytes(data))


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
messages = st.recursive(scalars, lambda inner: st.lists(inner, max_size=14) | st.dictionaries(scalars, inner))


@given(st.integers(0, 6), messages)
def test_a_field_of_any_other_type_raises_only_the_protocol_error(index: int, value: object) -> None:
    message = msgpack.unpackb(CARD.encode())
    message[index] = value
    decode_or_protocol_error(msgpack.packb(message))


@given(st.sampled_from([2, 3]), st.integers(0, 7), messages)
def test_a_nested_field_of_any_other_type_raises_only_the_protocol_error(
    record: int, index: int, value: object
) -> None:
    message = msgpack.unpackb(CARD.encode())
    message[record][index] = value
    decode_or_protocol_error(msgpack.packb(message))


@given(st.integers(0, 6), scalars)
def test_a_sampling_field_of_any_other_value_raises_only_the_protocol_error(index: int, value: object) -> None:
    message = msgpack.unpackb(CARD.encode())
    message[6][index] = value
    decode_or_protocol_error(msgpack.packb(message))


@pytest.mark.parametrize(
    ("index", "value"), [(0, -1.0), (0, float("nan")), (0, "hot"), (1, 2.5), (2, 0.0), (4, 0.0), (5, 3.0)]
)
def test_a_sampling_value_outside_its_limits_is_a_protocol_error(index: int, value: object) -> None:
    message = msgpack.unpackb(CARD.encode())
    message[6][index] = value
    with pytest.raises(ProtocolError, match="is not a"):
        ModelCard.decode(msgpack.packb(message))


@pytest.mark.parametrize("own", [{"seed": 1}, {"logprobs": 0}, {"logit_bias": ((1, 1.0),)}])
def test_a_card_has_nothing_that_is_a_requests_own(own: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sampling has"):
        replace(CARD, sampling=SamplingParams(**own))


def test_deep_nesting_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        ModelCard.decode(b"\x91" * 100_000)
