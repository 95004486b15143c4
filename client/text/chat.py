"""From messages to a prompt's token ids: what the template writes, with the messages' own text as text."""

from __future__ import annotations

from collections.abc import Sequence

from stagewire.client.text.chat_text import ChatText
from stagewire.client.text.hiding import Hiding, texts_of
from stagewire.client.text.message import ChatMessage, Fields, joined_parts
from stagewire.client.text.template import ChatTemplate
from stagewire.client.text.tokenizer import Tokenizer
from stagewire.wire.card import ModelCard
from stagewire.wire.errors import RequestRefused

_ALWAYS_THERE = frozenset({"role", "content"})


class Chat:
    """One model's way from messages to tokens.

    Raises:
        RequestRefused: as `ChatTemplate`.
    """

    def __init__(self, card: ModelCard, tokenizer: Tokenizer) -> None:
        self._template, self._tokenizer = ChatTemplate(card), tokenizer

    def token_ids(
        self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True, max_tokens: int | None = None
    ) -> list[int]:
        """The prompt in tokens.

        Raises:
            RequestRefused: INVALID_REQUEST, the template refuses the messages, or does not write one of their fields;
                CONTEXT_OVERFLOW, the prompt has more than `max_tokens`.
        """
        fields = self._fields(messages)
        text = self._template.render_fields(fields, add_generation_prompt)
        if max_tokens is not None:
            self._tokenizer.check_length(text, max_tokens)
        self._check_fields(fields, add_generation_prompt, text)
        return self._tokenizer.encode_chat(self._own_names(fields, add_generation_prompt, text), max_tokens)

    def _fields(self, messages: Sequence[ChatMessage]) -> list[Fields]:
        fields = [message.fields() for message in messages]
        if any(message.has_parts for message in messages) and not self._template.reads_parts():
            return [message | {"content": joined_parts(message["content"])} for message in fields]
        return fields

    def _check_fields(self, fields: Sequence[Fields], add_generation_prompt: bool, text: str) -> None:
        """Refuses a field without which the prompt is the same."""
        extra = {(message["role"], name): number for number, message in enumerate(fields) for name in message}
        for (role, name), number in extra.items():
            if name in _ALWAYS_THERE:
                continue
            without = [
                {key: value for key, value in message.items() if key != name or message["role"] != role}
                for message in fields
            ]
            if self._rendered(without, add_generation_prompt) == text:
                detail = f"messages[{number}] has {name!r:.80}, which the model's chat template does not write"
                raise RequestRefused(f"{detail} for the role {role!r:.80}; leave it out")

    def _own_names(self, fields: list[Fields], add_generation_prompt: bool, text: str) -> ChatText:
        """Which control tokens are the template's: those that it writes also where the messages' text is hidden."""
        names = self._tokenizer.names
        hiding = Hiding(names, [self._template.source, *names.guarded.names, *texts_of(fields), text])
        for hide in (hiding.everywhere, hiding.where_needed):
            hidden = hide(fields)
            if hidden == fields:
                return ChatText(text)
            rendered = self._rendered(hidden, add_generation_prompt)
            rendered = rendered if rendered is None else hiding.unescaped(rendered)
            if rendered is not None and hiding.shown(rendered) == text:
                return ChatText(text, self._guarded_spans(rendered))
        # The template looks for what was hidden. Then it must not find it, if that made a control token.
        if rendered is None:
            raise RequestRefused("the chat template refused the messages without the names of control tokens in them")
        if self._guarded_texts(rendered) == self._guarded_texts(text) and not self._hold_names(fields):
            return ChatText(text)
        return ChatText(hiding.shown(rendered), self._guarded_spans(rendered))

    def _rendered(self, fields: Sequence[Fields], add_generation_prompt: bool) -> str | None:
        try:
            return self._template.render_fields(fields, add_generation_prompt)
        except RequestRefused:
            return None

    def _guarded_spans(self, text: str) -> frozenset[tuple[int, int]]:
        return frozenset(self._tokenizer.names.guarded.spans(text))

    def _guarded_texts(self, text: str) -> list[str]:
        return [text[start:end] for start, end in self._tokenizer.names.guarded.spans(text)]

    def _hold_names(self, fields: Sequence[Fields]) -> bool:
        guarded = self._tokenizer.names.guarded
        starts = (guarded.starts_of_any_case(text) for message in fields for text in texts_of(message))
        return any(next(found, None) is not None for found in starts)
