"""From what a caller writes to the request that is sent: text or messages to token ids, limits checked."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from stagewire.client import arguments
from stagewire.client.answer import Transcript
from stagewire.wire.errors import ErrorCode, RequestRefused
from stagewire.wire.frontend import Generate
from stagewire.wire.limits import MAX_PROMPT_TOKENS, MAX_STOP_TOKENS, MAX_TOKENS
from stagewire.wire.request import SnapshotRequest
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds

if TYPE_CHECKING:
    from stagewire.client.text.message import ChatMessage
    from stagewire.client.text.tokenizer import Tokenizer
    from stagewire.wire.card import ModelCard

Message: TypeAlias = "ChatMessage | Mapping[str, object]"
_SEED_BITS = 63


class GenerateOptions(TypedDict, total=False):
    """What `generate` takes besides a text.

    Exactly one prompt: a text, `messages` through the model's chat template, or token ids. A text is one message of a
    user; where the model has no chat template, or with `raw`, the model continues the text as it is.

    Attributes:
        messages: `ChatMessage`s, or mappings with `role`, `content` and what else the template knows. What they hold
            is text: the names of control tokens in it are characters like others.
        prompt_token_ids: a prompt in tokens; the answer then has no text unless `stop` or `detokenize` asks for it.
        sampling: see `SamplingParams`; None takes the model's own, `ModelCard.sampling`. `Result.sampling` tells.
        raw: no chat template: the model continues the text.
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
    raw: bool
    max_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    detokenize: bool
    snapshot: SnapshotRequest | None
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
    raw: bool = False
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    detokenize: bool = False
    snapshot: SnapshotRequest | None = None
    restore: str | None = None
    add_generation_prompt: bool = True

    def __post_init__(self) -> None:
        self._check_kinds()
        given = [self.text, self.messages, self.prompt_token_ids]
        if sum(value is not None for value in given) != 1:
            raise RequestRefused("give exactly one of text, messages and prompt_token_ids")
        if self.raw and self.text is None:
            raise RequestRefused(
                "raw=True needs a text; messages go through the chat template, token ids are as they are"
            )
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
        arguments.check_kind("snapshot", self.snapshot, SnapshotRequest, "SnapshotRequest('rules')")
        arguments.check_kind("restore", self.restore, str, "'rules'")
        arguments.check_kind("ignore_eos", self.ignore_eos, bool, "True")
        arguments.check_kind("detokenize", self.detokenize, bool, "True")
        arguments.check_kind("raw", self.raw, bool, "True")
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

    @property
    def needs_card(self) -> bool:
        """Text, or the model's own sampling. A prompt that is only computed draws nothing."""
        return self.needs_tokenizer or (self.sampling is None and self.max_tokens != 0)

    def token_ids(self, card: ModelCard | None, tokenizer: Tokenizer | None) -> list[int]:
        """The prompt in tokens.

        Raises:
            RequestRefused: the template cannot take the messages; CONTEXT_OVERFLOW, a text has more tokens than the
                model's context.
        """
        if self.prompt_token_ids is not None:
            return [*self.prompt_token_ids]
        assert card is not None
        assert tokenizer is not None
        context = card.config.context_length
        if self.text is not None and (self.raw or card.chat_template is None):
            return tokenizer.encode(self.text, as_prompt=True, max_tokens=context)
        from stagewire.client.text.chat import Chat  # noqa: PLC0415  needs the extra `text`

        given = [{"role": "user", "content": self.text}] if self.text is not None else self.messages or ()
        messages = [_message(number, message) for number, message in enumerate(given)]
        return Chat(card, tokenizer).token_ids(messages, self.add_generation_prompt, context)

    def request(self, session_id: str, model: str | None, token_ids: list[int], card: ModelCard | None) -> Generate:
        """The message, under a random id; `card` says how to sample where the caller does not."""
        if len(token_ids) > MAX_PROMPT_TOKENS:
            detail = f"the prompt has {len(token_ids)} tokens; at most {MAX_PROMPT_TOKENS}"
            raise RequestRefused(detail, ErrorCode.CONTEXT_OVERFLOW)
        return Generate(
            request_id=secrets.token_hex(16),
            session_id=session_id,
            model=model,
            sampling=self._sampling(card),
            max_tokens=self.max_tokens,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            prompt_token_ids=TokenIds.of(token_ids),
            snapshot=self.snapshot,
            restore=self.restore,
        )

    def _sampling(self, card: ModelCard | None) -> SamplingParams:
        """What is drawn with, a seed included: an answer can be repeated by what its result says."""
        sampling = self.sampling or (card.sampling if card else SamplingParams())
        if sampling.seed is not None or sampling.is_greedy:
            return sampling
        return replace(sampling, seed=secrets.randbits(_SEED_BITS))

    def transcript(self, request: Generate, tokenizer: Tokenizer | None) -> Transcript:
        """An empty answer, with text where there is a tokenizer."""
        num_prompt_tokens = len(request.prompt_token_ids)
        if tokenizer is None:
            return Transcript(num_prompt_tokens, None, request.sampling)
        from stagewire.client.text.stream import TextStream  # noqa: PLC0415  needs the extra `text`

        text_of = partial(_text_of, tokenizer)
        return Transcript(num_prompt_tokens, TextStream(tokenizer, tuple(self.stop)), request.sampling, text_of)


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
        snapshot=SnapshotRequest(name),
        raw=text is not None,
        add_generation_prompt=False,
    )


def _message(number: int, message: Message) -> ChatMessage:
    from stagewire.client.text.message import ChatMessage  # noqa: PLC0415  needs the extra `text`

    if isinstance(message, ChatMessage):
        return message
    if not isinstance(message, Mapping):
        raise RequestRefused(f"messages[{number}] is no message but {type(message).__name__}")
    try:
        return ChatMessage.of(message)
    except RequestRefused as error:
        raise RequestRefused(f"messages[{number}]: {error.detail}", error.code) from None
