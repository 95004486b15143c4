"""Long texts: encoded in parts, with the ids of the whole, while the process goes on with other things."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.text_cards import CONTROL, USER_DEFINED, tiny_card

from stagewire.client.text import cuts
from stagewire.client.text import tokenizer as tokenizer_module
from stagewire.client.text.special_names import NamePattern
from stagewire.client.text.tokenizer import Tokenizer
from stagewire.model.card import build_card
from stagewire.model.gguf import GgufFile
from stagewire.wire.errors import ErrorCode, RequestRefused

MERGES = [
    "Ġ a", "a b", "ab a", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "ĊĊ Ċ", "č Ċ", "1 2", "12 3", "' s", "! !", "! Ċ", ", b", "Ġ !",
    "ã ģ", "ãģ Ĥ", "Ġ Ċ", "ĉ ĉ", "b '", "! Ċ", "= =",
]  # fmt: skip
EXTRA = [("<|end|>", CONTROL), ("<tool é>", USER_DEFINED)]
SCHEMES = ["gpt-2", "smollm", "llama-bpe", "qwen2"]
TOKENIZERS = {pre: Tokenizer(tiny_card(EXTRA, merges=list(dict.fromkeys(MERGES)), pre=pre)) for pre in SCHEMES}
LONG = {
    "one word": "abcdefghij" * 40_000,
    "one letter": "a" * 400_000,
    "spaces": " " * 400_000,
    "line breaks": "\n" * 400_000,
    "Windows": "line, two\r\n\r\n" * 20_000,
    "digits": "1234567890" * 10_000,
    "words": "The quick brown fox jumps over the lazy dog. It's 12:30!\n" * 5_000,
    "scripts": "Привет, мир! 日本語、中文。 שלום עולם नमस्ते x̂ e\u0301 ﷺ" * 2_000,
    "Japanese": "日本語中文" * 40_000,
    "emoji": "👩‍👩‍👧🙂👍🏽" * 10_000,
    "code": "x[i]=foo(a,b);\n\tif(x){y+=1}  // don't\n" * 5_000,
    "names": "a<|end|> <tool é>b" * 10_000,
    "marks": "=\u0338 a\u0301'\u0301 " * 10_000,
}


def in_one_piece(text: str, _splits_digits: bool) -> Iterator[str]:
    yield text


@pytest.mark.parametrize("kind", LONG)
def test_a_long_text_has_the_ids_of_the_whole(kind: str, gguf_file: GgufFile, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Tokenizer(build_card(gguf_file, "smollm2-135m"))
    ids = model.encode(LONG[kind], parse_special=True)
    monkeypatch.setattr(tokenizer_module, "parts", in_one_piece)
    assert ids == model.encode(LONG[kind], parse_special=True)


letters = st.sampled_from(
    [
        *"ab1239 '!.,_-<>[]=\n\r\t\u0338\u0301\u00a0\u3000\u2028\x1c\x85",
        "日",
        "あ",
        "、",
        "。",
        "👍",
        "\u200d",
        "é",
        "e\u0301",
        "'s",
        "'LL",
    ]
)


@pytest.mark.parametrize("pre", SCHEMES)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(letters, max_size=40).map("".join) | st.text(max_size=40))
def test_wherever_a_text_may_be_cut_its_ids_are_those_of_the_whole(
    text: str, pre: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every scheme: here at each such place, which is more than ever happens."""
    model = TOKENIZERS[pre]
    with monkeypatch.context() as patch:
        patch.setattr(cuts, "_PART_CHARS", 1)
        assert "".join(cuts.parts(text, splits_digits=pre == "smollm")) == text
        ids = model.encode(text)
        patch.setattr(tokenizer_module, "parts", in_one_piece)
        assert ids == model.encode(text)


def test_ordinary_texts_have_places_to_cut() -> None:
    """So that no part takes long."""
    for kind in ("words", "code", "scripts", "Windows"):
        assert max(map(len, cuts.parts(LONG[kind], splits_digits=False))) < 2000, kind


def test_names_are_found_across_the_windows_in_which_a_text_is_searched() -> None:
    names = NamePattern(["<|end|>", "<|e", "xx"])
    for shift in range(9):
        text = "-" * ((1 << 16) - shift) + "<|end|>" + "-" * 70_000 + "<|e" + "x" * 5
        assert [text[start:end] for start, end in names.spans(text)] == ["<|end|>", "<|e", "xx", "xx"]


def longest_pause_s(work: Callable[[], object]) -> float:
    """How long another thread could not run meanwhile."""
    pauses, is_over = [0.0], threading.Event()

    def look() -> None:
        before = time.monotonic()
        while not is_over.is_set():
            time.sleep(0.001)
            now = time.monotonic()
            pauses.append(now - before)
            before = now

    thread = threading.Thread(target=look)
    thread.start()
    work()
    is_over.set()
    thread.join()
    return max(pauses)


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["one word", "digits", "words", "Japanese"])
def test_other_threads_run_while_a_long_text_is_encoded(kind: str, gguf_file: GgufFile) -> None:
    """In one piece each holds the interpreter for half a second to five; the bound leaves room for a busy machine."""
    model = Tokenizer(build_card(gguf_file, "smollm2-135m"))
    text = LONG[kind] * (1_000_000 // len(LONG[kind]) + 1)
    assert min(longest_pause_s(lambda: model.encode(text)) for _ in range(2)) < 0.4


@pytest.mark.parametrize("kind", ["words", "code", "scripts", "Windows", "digits", "names"])
def test_no_part_holds_the_interpreter_for_long(
    kind: str, gguf_file: GgufFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the processor time of each call that other threads wait for; half of it in all but one of a hundred."""
    model = Tokenizer(build_card(gguf_file, "smollm2-135m"))
    held_s: list[float] = []
    encode_part = Tokenizer._encode_part

    def timed(self: Tokenizer, part: str) -> tokenizers.Encoding:
        assert len(part) <= tokenizer_module._BATCH_CHARS
        before = time.thread_time()
        encoding = encode_part(self, part)
        held_s.append(time.thread_time() - before)
        return encoding

    monkeypatch.setattr(Tokenizer, "_encode_part", timed)
    model.encode(LONG[kind])
    assert held_s
    assert max(held_s) < 0.05
    assert sorted(held_s)[len(held_s) * 99 // 100] < 0.05 / 2


def test_a_text_that_cannot_fit_is_refused_by_its_size_and_others_where_they_go_beyond() -> None:
    model = TOKENIZERS["smollm"]
    longest = max(len(model.token_bytes(token_id)) for token_id in range(256 + len(MERGES)))
    for text in ("a" * (100 * 10 + 1), "é" * 600, "<|end|>" * 300):
        with pytest.raises(
            RequestRefused, match=f"prompt too long: a text of {len(text)} characters.*100 tokens"
        ) as refused:
            model.encode(text, max_tokens=100)
        assert refused.value.code is ErrorCode.CONTEXT_OVERFLOW
    assert longest <= 9
    for text in ("b" * 101, "1 " * 60, "日" * 34, "b " * 300):
        with pytest.raises(RequestRefused, match="prompt too long: it has more than 100 tokens"):
            model.encode(text, max_tokens=100)
    for text in ("b" * 100, "b " * 50, "<tool é>" * 100, "<tool é>" * 99 + "b"):
        assert model.encode(text, max_tokens=100) == model.encode(text)


@pytest.mark.parametrize("text", ["\u1100\u1161\u11a8", "\u03b9\u0308\u0301", "\u03b1\u0313\u0300\u0345", "e\u0301"])
def test_a_text_that_shrinks_when_its_characters_compose_is_not_refused_by_its_size(text: str) -> None:
    composed = TOKENIZERS["qwen2"].encode(text * 100)
    assert TOKENIZERS["qwen2"].encode(text * 100, max_tokens=len(composed)) == composed


def test_the_longest_token_counts_as_its_bytes() -> None:
    """A token of eighty spaces has eighty bytes, though two to each in the file."""
    widths = [2**power for power in range(7)]
    merges = [f"{'Ġ' * width} {'Ġ' * width}" for width in itertools.takewhile(lambda width: width < 64, widths)]
    model = Tokenizer(tiny_card(merges=merges, pre="gpt-2"))
    assert len(model.encode(" " * 640, max_tokens=10)) == 10
    with pytest.raises(RequestRefused, match="a text of 641 characters"):
        model.encode(" " * 641, max_tokens=10)
