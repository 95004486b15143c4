"""Streamed text: the pieces add up to the decoded text before the first stop string, whatever the chunks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.text_cards import CONTROL, tiny_card

from stagewire.client.text.stream import TextStream
from stagewire.client.text.tokenizer import Tokenizer
from stagewire.model.card import build_card
from stagewire.model.gguf import GgufFile
from stagewire.wire.errors import ErrorCode, RequestRefused

TINY = Tokenizer(tiny_card([("<|end|>", CONTROL)], merges=["a b", "ab a", "b a", "Ġ a"]))
CONTROL_ID = TINY.encode("<|end|>", parse_special=True)[0]


def stream_all(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str]) -> tuple[list[str], str | None]:
    """What each token and the end show, and the stop string that matched."""
    stream = TextStream(tokenizer, stop)
    return [*(stream.push(token_id) for token_id in ids), stream.finish()], stream.stopped


def reference(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """The definition, character by character: the first stop string to be complete, of those the longest."""
    for end in range(len(text) + 1):
        complete = [one for one in stop if text[:end].endswith(one)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def ids_of(pieces: Sequence[str | bytes]) -> list[int]:
    """One token per byte, and the control token for '<|end|>'."""
    by_byte = {TINY.token_bytes(token_id): token_id for token_id in range(256)}
    ids: list[int] = []
    for piece in pieces:
        data = piece.encode() if isinstance(piece, str) else piece
        ids += [CONTROL_ID] if piece == "<|end|>" else [by_byte[data[i : i + 1]] for i in range(len(data))]
    return ids


token_ids = st.lists(st.integers(0, 260), max_size=40)
# Few letters, so that stop strings occur, overlap and share beginnings.
letter_ids = st.lists(st.sampled_from([*ids_of(["ab", " ", "é", "日"]), *range(256, 261)]), max_size=40)
stops = st.lists(st.text(st.sampled_from("ab é日\ufffd"), min_size=1, max_size=5), max_size=4)


@given(ids=token_ids | letter_ids, stop=stops)
def test_what_is_shown_is_the_text_up_to_the_first_stop(ids: list[int], stop: list[str]) -> None:
    pieces, stopped = stream_all(TINY, ids, stop)
    assert ("".join(pieces), stopped) == reference(TINY.decode(ids), stop)


@given(text=st.text(st.sampled_from("ab é日"), max_size=30), stop=stops)
def test_how_the_text_falls_into_tokens_does_not_matter(text: str, stop: list[str]) -> None:
    merged, stopped = stream_all(TINY, TINY.encode(text), stop)
    single, stopped_too = stream_all(TINY, ids_of([text]), stop)
    assert ("".join(merged), stopped) == ("".join(single), stopped_too)


@given(ids=token_ids)
def test_without_stop_strings_no_character_is_held_once_it_is_whole(ids: list[int]) -> None:
    stream, shown = TextStream(TINY), ""
    for count, token_id in enumerate(ids, start=1):
        shown += stream.push(token_id)
        missing = TINY.decode(ids[:count]).removeprefix(shown)
        assert set(missing) <= {"\ufffd"}  # only the beginning of a character that is not complete yet
    assert shown + stream.finish() == TINY.decode(ids)


@given(
    ids=st.lists(st.integers(0, 49151), max_size=30),
    stop=st.lists(st.text(min_size=1, max_size=6), max_size=3),
)
def test_the_default_models_tokens_stream_as_they_decode(ids: list[int], stop: list[str], smollm2: Tokenizer) -> None:
    pieces, stopped = stream_all(smollm2, ids, stop)
    assert ("".join(pieces), stopped) == reference(smollm2.decode(ids), stop)


@pytest.fixture(scope="module")
def smollm2(gguf_file: GgufFile) -> Tokenizer:
    return Tokenizer(build_card(gguf_file, "smollm2-135m"))


def test_a_character_is_shown_when_its_last_byte_has_come() -> None:
    pieces, _ = stream_all(TINY, ids_of(["a日b"]), [])
    assert pieces == ["a", "", "", "日", "b", ""]


def test_a_character_that_never_becomes_whole_gives_one_replacement_and_is_not_lost() -> None:
    pieces, _ = stream_all(TINY, ids_of(["a", "日".encode()[:2]]), [])
    assert pieces == ["a", "", "", "\ufffd"]


def test_control_tokens_are_not_shown_and_do_not_break_a_character() -> None:
    pieces, _ = stream_all(TINY, ids_of(["é".encode()[:1], "<|end|>", "é".encode()[1:]]), [])
    assert "".join(pieces) == "é"


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_decided() -> None:
    pieces, stopped = stream_all(TINY, ids_of(["aXYbXYZc"]), ["XYZ"])
    assert pieces == ["a", "", "", "XYb", "", "", "", "", ""]
    assert stopped == "XYZ"
    assert "".join(pieces) == "aXYb"


def test_a_held_back_tail_is_shown_at_the_end() -> None:
    pieces, stopped = stream_all(TINY, ids_of(["aXY"]), ["XYZ"])
    assert pieces == ["a", "", "", "XY"]
    assert stopped is None


def test_the_stop_string_that_is_complete_first_wins_and_of_several_the_longest() -> None:
    assert stream_all(TINY, ids_of(["zabcd"]), ["abcd", "bc"]) == (["z", "", "", "a", "", ""], "bc")
    assert stream_all(TINY, ids_of(["zabc"]), ["bc", "abc", "c"])[1] == "abc"


def test_after_a_stop_nothing_more_is_shown() -> None:
    stream = TextStream(TINY, ["b"])
    assert [stream.push(token_id) for token_id in ids_of(["abc"])] == ["a", "", ""]
    assert stream.finish() == ""
    assert stream.stopped == "b"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestRefused, match="empty") as caught:
        TextStream(TINY, ["x", ""])
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_bad_token_id_changes_nothing() -> None:
    stream = TextStream(TINY, ["ab"])
    stream.push(ids_of(["a"])[0])
    with pytest.raises(RequestRefused):
        stream.push(1 << 20)
    assert stream.finish() == "a"
