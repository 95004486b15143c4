"""Text to token ids and back, by the vocabulary in a model card; it knows no templates and no streams."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping

import tokenizers
from tokenizers.models import BPE

from stagewire.client.text.chat_text import ChatText
from stagewire.client.text.cuts import parts
from stagewire.client.text.pretokenizer import SCHEMES
from stagewire.client.text.special_names import HIDDEN_TYPES, USER_DEFINED, SpecialNames
from stagewire.wire.card import ModelCard, TokenizerData
from stagewire.wire.errors import ErrorCode, ModelError, RequestRefused

_BYTE = 6  # GGUF's token type
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BATCH_CHARS = 2048
# No canonical composition makes one character of one byte out of more than three of them.
_NFC_SHRINKS = 3


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
        self.names = SpecialNames(self._data)
        self._longest_bytes = self._longest_token() * (_NFC_SHRINKS if SCHEMES[self._data.pre].normalize else 1)

    def encode(
        self, text: str, parse_special: bool = False, as_prompt: bool = False, max_tokens: int | None = None
    ) -> list[int]:
        """Returns the token ids of `text`.

        Other threads go on meanwhile: a part of the text is encoded at a time.

        Args:
            text: any text; the empty one has no tokens.
            parse_special: whether the text of a control token, such as `<|im_end|>`, becomes that token. Not
                for bare text of a user, who could then speak for the model.
            as_prompt: whether to begin with the vocabulary's start token, where the model expects one and
                the text does not already begin with it.
            max_tokens: what the model can take. A text that must have more is not encoded to its end, or not at all.

        Raises:
            RequestRefused: INVALID_REQUEST, the text holds a lone surrogate; CONTEXT_OVERFLOW, it has more than
                `max_tokens`.
        """
        names = self.names.all if parse_special else self.names.added
        ids = self._encode(text, names.spans(text), max_tokens)
        bos = self._data.bos_token_id
        if as_prompt and self._data.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def encode_chat(self, chat: ChatText, max_tokens: int | None = None) -> list[int]:
        """Returns the token ids of what a template wrote: control tokens where it wrote their names itself.

        Raises:
            RequestRefused: as `encode`.
        """
        return self._encode(chat.text, chat.spans(self.names), max_tokens)

    def check_length(self, text: str, max_tokens: int) -> None:
        """Tells from the size of `text` alone that it must have more than `max_tokens`.

        Raises:
            RequestRefused: CONTEXT_OVERFLOW.
        """
        most = max_tokens * self._longest_bytes
        if len(text) > most or (4 * len(text) > most and len(text.encode(errors="surrogatepass")) > most):
            raise _too_long(f"a text of {len(text)} characters", max_tokens)

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
        if kind in HIDDEN_TYPES or kind == USER_DEFINED:
            return token.encode()
        if kind == _BYTE and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return b"".join(_BYTE_OF_CHARACTER.get(character) or character.encode() for character in token)

    def visible_bytes(self, token_id: int) -> bytes:
        """As `token_bytes`, but a control token has none: what a reader of the answer should see."""
        if 0 <= token_id < len(self._data.tokens) and self._data.token_types[token_id] in HIDDEN_TYPES:
            return b""
        return self.token_bytes(token_id)

    def _longest_token(self) -> int:
        longest = 0
        for token_id, token in enumerate(self._data.tokens):
            if 4 * len(token) > longest:  # else it has fewer bytes
                longest = max(longest, len(self.token_bytes(token_id)))
        return longest

    def _encode(self, text: str, names: Iterable[tuple[int, int]], max_tokens: int | None) -> list[int]:
        if max_tokens is not None:
            self.check_length(text, max_tokens)
        ids: list[int] = []
        for part in self._parts(text, names, max_tokens):
            ids += part
            if max_tokens is not None and len(ids) > max_tokens:
                raise _too_long(f"it has more than {max_tokens} tokens", max_tokens)
        return ids

    def _parts(self, text: str, names: Iterable[tuple[int, int]], max_tokens: int | None) -> Iterator[list[int]]:
        position = 0
        for start, end in names:
            yield from self._encode_plain(text[position:start], max_tokens)
            yield [self.names.ids[text[start:end]]]
            position = end
        yield from self._encode_plain(text[position:], max_tokens)

    def _encode_plain(self, text: str, max_tokens: int | None) -> Iterator[list[int]]:
        for part in parts(text, SCHEMES[self._data.pre].splits_digits):
            encoding = self._encode_part(part)
            if max_tokens is not None and len(encoding) > max_tokens:
                raise _too_long(f"it has more than {max_tokens} tokens", max_tokens)
            yield encoding.ids

    def _encode_part(self, part: str) -> tokenizers.Encoding:
        try:
            if len(part) <= _BATCH_CHARS:
                return self._bpe.encode(part, add_special_tokens=False)
            # Without a place to cut. This lets other threads run meanwhile, which `encode` does not.
            return self._bpe.encode_batch_fast([part], add_special_tokens=False)[0]
        except (UnicodeEncodeError, TypeError):  # what the library makes of a lone surrogate
            raise RequestRefused("the text is not valid Unicode: it holds a lone surrogate") from None


def _build(data: TokenizerData) -> tokenizers.Tokenizer:
    if data.model != "gpt2":
        raise _unsupported(f"the tokenizer model {data.model!r:.80} is not supported (supported: 'gpt2')")
    if data.pre not in SCHEMES:
        known = ", ".join(SCHEMES)
        raise _unsupported(f"the text splitter {data.pre!r:.80} is not supported (supported: {known})")
    scheme = SCHEMES[data.pre]
    merges = [_split_merge(merge) for merge in data.merges]
    vocabulary = _vocabulary(data, {left + right for left, right in merges})
    try:
        bpe = tokenizers.Tokenizer(BPE(vocabulary, merges, ignore_merges=scheme.ignore_merges))
    except Exception as error:  # noqa: BLE001  # the library raises plain Exception for an unknown merge
        raise _unsupported(f"the vocabulary contradicts itself: {error}") from None
    bpe.pre_tokenizer = scheme.build()
    if (normalizer := scheme.normalizer()) is not None:
        bpe.normalizer = normalizer
    return bpe


def _vocabulary(data: TokenizerData, merged: Container[str]) -> dict[str, int]:
    """What plain text can become: a control token only where nothing else is spelled so, and it cannot do without."""
    ids = list(enumerate(data.tokens))
    plain = {token: token_id for token_id, token in ids if data.token_types[token_id] not in HIDDEN_TYPES}
    needed = {token: token_id for token_id, token in ids if token in merged or len(token) == 1}
    return needed | plain


def _split_merge(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise _unsupported(f"the vocabulary has a merge that is not two tokens: {merge!r:.80}")
    return left, right


def _byte_of_character() -> Mapping[str, bytes]:
    """GPT-2's disguise of bytes as printable characters, reversed: 'Ġ' stands for the space."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    disguised = {chr(256 + index): bytes([byte]) for index, byte in enumerate(others)}
    return {chr(byte): bytes([byte]) for byte in printable} | disguised


_BYTE_OF_CHARACTER = _byte_of_character()


def _unsupported(detail: str) -> ModelError:
    return ModelError(f"{detail}; requests by token ids still work", ErrorCode.UNSUPPORTED_TOKENIZER)


def _too_long(what: str, max_tokens: int) -> RequestRefused:
    detail = f"prompt too long: {what}; the model's context has room for {max_tokens} tokens"
    return RequestRefused(detail, ErrorCode.CONTEXT_OVERFLOW)
