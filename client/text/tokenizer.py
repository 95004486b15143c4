"""Text to token ids and back, by the vocabulary in a model card; it knows no templates and no streams."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import tokenizers
from tokenizers.models import BPE

from stagewire.client.text.pretokenizer import SCHEMES
from stagewire.wire.card import ModelCard, TokenizerData
from stagewire.wire.errors import ErrorCode, ModelError, RequestRefused

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # GGUF's token types
_HIDDEN_TYPES = frozenset({_UNKNOWN, _CONTROL})
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """A byte-level BPE tokenizer. Threads may use it at the same time.

    Raises:
        ModelError: UNSUPPORTED_TOKENIZER, on construction: the card has no vocabulary, or one of a kind,
            named in the error, that this version does not know. Requests by token ids still work.
    """

    def __init__(self, card: ModelCard) -> None:
        if card.tokenizer is None:
            raise _unsupported(f"the model {card.name!r} comes without a vocabulary")
        self._data = card.tokenizer
        self._vocab_size = card.config.vocab_size
        self._bpe = _build(self._data)
        self._all_specials = _specials_pattern(self._data, frozenset({_UNKNOWN, _CONTROL, _USER_DEFINED}))
        self._user_defined = _specials_pattern(self._data, frozenset({_USER_DEFINED}))
        self._special_ids = {
            token: token_id
            for token_id, token in enumerate(self._data.tokens)
            if self._data.token_types[token_id] in _HIDDEN_TYPES | {_USER_DEFINED}
        }

    def encode(self, text: str, parse_special: bool = False, as_prompt: bool = False) -> list[int]:
        """Returns the token ids of `text`.

        Args:
            text: any text; the empty one has no tokens.
            parse_special: whether the text of a control token, such as `<|im_end|>`, becomes that token. Not
                for bare text of a user, who could then speak for the model.
            as_prompt: whether to begin with the vocabulary's start token, where the model expects one and
                the text does not already begin with it.

        Raises:
            RequestRefused: INVALID_REQUEST, the text holds a lone surrogate.
        """
        ids: list[int] = []
        pattern = self._all_specials if parse_special else self._user_defined
        for piece, is_special in _split(text, pattern):
            ids += [self._special_ids[piece]] if is_special else self._encode_plain(piece)
        bos = self._data.bos_token_id
        if as_prompt and self._data.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Returns the text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Raises:
            RequestRefused: TOKEN_OUT_OF_VOCABULARY.
        """
        piece = self.visible_bytes if skip_special else self.token_bytes
        return b"".join(piece(token_id) for token_id in ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Returns a token's bytes, which may be part of a character; a special token's are its name.

        Raises:
            RequestRefused: TOKEN_OUT_OF_VOCABULARY. Ids that only pad the embedding have no bytes.
        """
        if not 0 <= token_id < self._vocab_size:
            detail = f"token id {token_id} is outside the vocabulary of {self._vocab_size}"
            raise RequestRefused(detail, ErrorCode.TOKEN_OUT_OF_VOCABULARY)
        if token_id >= len(self._data.tokens):
            return b""
        token, kind = self._data.tokens[token_id], self._data.token_types[token_id]
        if kind in _HIDDEN_TYPES or kind == _USER_DEFINED:
            return token.encode()
        if kind == _BYTE and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return b"".join(_BYTE_OF_CHARACTER.get(character) or character.encode() for character in token)

    def visible_bytes(self, token_id: int) -> bytes:
        """As `token_bytes`, but a control token has none: what a reader of the answer should see."""
        if 0 <= token_id < len(self._data.tokens) and self._data.token_types[token_id] in _HIDDEN_TYPES:
            return b""
        return self.token_bytes(token_id)

    def _encode_plain(self, text: str) -> list[int]:
        try:
            return self._bpe.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):  # what the library makes of a lone surrogate
            raise RequestRefused("the text is not valid Unicode: it holds a lone surrogate") from None


def _build(data: TokenizerData) -> tokenizers.Tokenizer:
    if data.model != "gpt2":
        raise _unsupported(f"the tokenizer model {data.model!r:.80} is not supported (supported: 'gpt2')")
    if data.pre not in SCHEMES:
        known = ", ".join(SCHEMES)
        raise _unsupported(f"the text splitter {data.pre!r:.80} is not supported (supported: {known})")
    scheme = SCHEMES[data.pre]
    vocabulary = {token: token_id for token_id, token in enumerate(data.tokens)}
    merges = [_split_merge(merge) for merge in data.merges]
    try:
        bpe = tokenizers.Tokenizer(BPE(vocabulary, merges, ignore_merges=scheme.ignore_merges))
    except Exception as error:  # noqa: BLE001  # the library raises plain Exception for an unknown merge
        raise _unsupported(f"the vocabulary contradicts itself: {error}") from None
    bpe.pre_tokenizer = scheme.build()
    if (normalizer := scheme.normalizer()) is not None:
        bpe.normalizer = normalizer
    return bpe


def _split_merge(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise _unsupported(f"the vocabulary has a merge that is not two tokens: {merge!r:.80}")
    return left, right


def _specials_pattern(data: TokenizerData, types: frozenset[int]) -> re.Pattern[str] | None:
    names = {token for token, kind in zip(data.tokens, data.token_types, strict=True) if kind in types and token}
    # The longest first: where one name begins with another, the longer one is meant.
    ordered = sorted(names, key=len, reverse=True)
    return re.compile("|".join(re.escape(name) for name in ordered)) if ordered else None


def _split(text: str, pattern: re.Pattern[str] | None) -> Iterator[tuple[str, bool]]:
    """Yields the text's pieces in order, none of them empty, each with whether `pattern` matched it."""
    position = 0
    for match in pattern.finditer(text) if pattern else ():
        if match.start() > position:
            yield text[position : match.start()], False
        yield match.group(), True
        position = match.end()
    if position < len(text):
        yield text[position:], False


def _byte_of_character() -> Mapping[str, bytes]:
    """GPT-2's disguise of bytes as printable characters, reversed: 'Ġ' stands for the space."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    disguised = {chr(256 + index): bytes([byte]) for index, byte in enumerate(others)}
    return {chr(byte): bytes([byte]) for byte in printable} | disguised


_BYTE_OF_CHARACTER = _byte_of_character()


def _unsupported(detail: str) -> ModelError:
    return ModelError(f"{detail}; requests by token ids still work", ErrorCode.UNSUPPORTED_TOKENIZER)
