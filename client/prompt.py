"""From what a caller writes to the request that is sent: text or messages to token ids, limits checked."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from stagewire.client import arguments
from stagewire.client.answer import Transcript
from stagewire.wire.errors import ErrorCode, RequestRefused
from stagewire.wire.frontend import Generate
from stagewire.wire.limits import MAX_PROMPT_TOKENS, MAX_STOP_TOKENS, MAX_TOKENS
from stagewire.wire.request import SnapshotWish
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds

if TYPE_CHECKING:
    from stagewire.client.text.template import ChatMessage
    from stagewire.client.text.tokenizer import Tokenizer
    from stagewire.wire.card import ModelCard

Message: TypeAlias = "ChatMessage | Mapping[str, str]"


class GenerateOptions(TypedDict, total=False):
    """What `generate` takes besides a text.

    Exactly one prompt: a text as it is, `messages` through the model's chat template, or token ids.

    Attributes:
        messages: `ChatMessage`s, or mappings with `role` and `content`.
        prompt_token_ids: a prompt in tokens; the answer then has no text unless `stop` or `detokenize` asks for it.
        sampling: see `SamplingParams`.
        max_tokens: at most so many; None goes on to the context's end; 0 only computes the prompt.
        stop: strings that end the answer; their text is not returned.
        stop_token_ids: tokens that end it, beside the model's own end tokens.
        ignore_eos: do not stop at the model's end tokens.
        detokenize: give text also where the prompt comes in tokens.
        snapshot: keep the prompt, or its beginning, on all stages; `Result.kept_tokens` says that they do.
        restore: a snapshot of this client that must be there; the request goes to the pipeline that has it. As
            always, what the prompt shares with it is restored, and the rest computed; `Result.restore_note` says so
            where that is not all of it.
    """

    messages: Sequence[Message] | None
    prompt_token_ids: Sequence[int] | None
    sampling: SamplingParams | None
    max_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    detokenize: bool
    snapshot: SnapshotWish | None
    restore: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What is asked for: `GenerateOptions`, and the text.

    Messages end where the model's answer begins if `add_generation_prompt`, else where more messages may follow.

    Raises:
        RequestRefused: INVALID_REQUEST, naming what is wrong.
    """

    text: str | None = None
    messages: Sequence[Message] | None = None
    prompt_token_ids: Sequence[int] | None = None
    sampling: SamplingParams | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    detokenize: bool = False
    snapshot: SnapshotWish | None = None
    restore: str | None = None
    add_generation_prompt: bool = True

    def __post_init__(self) -> None:
        self._check_kinds()
        given = [self.text, self.messages, self.prompt_token_ids]
        if sum(value is not None for value in given) != 1:
            raise RequestRefused("give exactly one of text, messages and prompt_token_ids")
        if self.snapshot and self.snapshot.file is not None and self.prompt_token_ids != []:
            raise RequestRefused("a snapshot from a file has its own prompt; give prompt_token_ids=[]")
        if self.max_tokens is not None and (type(self.max_tokens) is not int or not 0 <= self.max_tokens <= MAX_TOKENS):
            raise RequestRefused(f"max_tokens={self.max_tokens!r:.80} is not an integer in [0, {MAX_TOKENS}]")
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise RequestRefused(f"{len(self.stop_token_ids)} stop tokens; at most {MAX_STOP_TOKENS}")

    def _check_kinds(self) -> None:
        arguments.check_text(self.text)
        arguments.check_messages(self.messages)
        arguments.check_kind("sampling", self.sampling, SamplingParams, "SamplingParams(temperature=0)")
        arguments.check_kind("snapshot", self.snapshot, SnapshotWish, "SnapshotWish('rules')")
        arguments.check_kind("restore", self.restore, str, "'rules'")
        arguments.check_kind("ignore_eos", self.ignore_eos, bool, "True")
        arguments.check_kind("detokenize", self.detokenize, bool, "True")
        # Iterators are read once, and integers of any kind become plain ones.
        object.__setattr__(self, "stop", arguments.stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", arguments.token_ids("stop_token_ids", self.stop_token_ids))
        if self.prompt_token_ids is not None:
            token_ids = arguments.token_ids("prompt_token_ids", self.prompt_token_ids)
            object.__setattr__(self, "prompt_token_ids", token_ids)

    @property
    def needs_tokenizer(self) -> bool:
        """Text goes in, or must be looked at."""
        return self.prompt_token_ids is None or bool(self.stop) or self.detokenize

    def token_ids(self, card: ModelCard | None, tokenizer: Tokenizer | None) -> list[int]:
        """The prompt in tokens.

        Raises:
            RequestRefused: a token id is none, or the template cannot take the messages.
        """
        if self.prompt_token_ids is not None:
            return [*self.prompt_token_ids]
        assert card is not None
        assert tokenizer is not None
        if self.text is not None:
            return tokenizer.encode(self.text, as_prompt=True)
        from stagewire.client.text.template import ChatTemplate  # noqa: PLC0415  needs the extra `text`

        assert self.messages is not None
        messages = [_message(message) for message in self.messages]
        rendered = ChatTemplate(card).render(messages, self.add_generation_prompt)
        return tokenizer.encode(rendered, parse_special=True)

    def request(self, session_id: str, model: str | None, token_ids: list[int]) -> Generate:
        """The message, under a random id."""
        if len(token_ids) > MAX_PROMPT_TOKENS:
            detail = f"the prompt has {len(token_ids)} tokens; at most {MAX_PROMPT_TOKENS}"
            raise RequestRefused(detail, ErrorCode.CONTEXT_OVERFLOW)
        return Generate(
            request_id=secrets.token_hex(16),
            session_id=session_id,
            model=model,
            sampling=self.sampling or SamplingParams(),
            max_tokens=self.max_tokens,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            prompt_token_ids=TokenIds.of(token_ids),
            snapshot=self.snapshot,
            restore=self.restore,
        )

    def transcript(self, num_prompt_tokens: int, tokenizer: Tokenizer | None) -> Transcript:
        """An empty answer, with text where there is a tokenizer."""
        if tokenizer is None:
            return Transcript(num_prompt_tokens, None)
        from stagewire.client.text.stream import TextStream  # noqa: PLC0415  needs the extra `text`

        text_of = partial(_text_of, tokenizer)
        return Transcript(num_prompt_tokens, TextStream(tokenizer, tuple(self.stop)), text_of)


def _text_of(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.decode([token_id], skip_special=False)


def asked(text: str | None, options: GenerateOptions) -> Prompt:
    """What a caller of `generate` wants.

    Raises:
        RequestRefused: as `Prompt`.
        TypeError: an option has a name that none has.
    """
    arguments.check_names(options, GenerateOptions.__annotations__)
    return Prompt(text=text, **options)


def snapshot_prompt(
    name: str, text: str | None, messages: Sequence[Message] | None, prompt_token_ids: Sequence[int] | None
) -> Prompt:
    """What is computed to be kept: of messages, the beginning of every conversation that begins with them.

    Raises:
        RequestRefused: as `Prompt`; there is nothing to keep.
    """
    if not text and not messages and not prompt_token_ids:
        raise RequestRefused("there is nothing to keep: the prompt is empty")
    return Prompt(
        text=text,
        messages=messages,
        prompt_token_ids=prompt_token_ids,
        max_tokens=0,
        snapshot=SnapshotWish(name),
        add_generation_prompt=False,
    )


def _message(message: Message) -> ChatMessage:
    from stagewire.client.text.template import ChatMessage  # noqa: PLC0415  needs the extra `text`

    if isinstance(message, ChatMessage):
        return message
    try:
        return ChatMessage(message["role"], message["content"])
    except (KeyError, TypeError) as error:
        raise RequestRefused("a message needs `role` and `content`") from error
