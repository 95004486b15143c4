"""Chat messages to one prompt text, by the template in a model card; it never tokenizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stagewire.wire.card import ModelCard
from stagewire.wire.errors import RequestRefused

# What a template, which is a program, can run into besides its own errors.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation. `role` is what the model's template knows: system, user, assistant.

    Raises:
        RequestRefused: INVALID_REQUEST, on construction, naming the field.
    """

    role: str
    content: str

    def __post_init__(self) -> None:
        _check_text("role", self.role)
        _check_text("content", self.content)
        if not self.role:
            raise RequestRefused("a message's role is empty")


class ChatTemplate:
    """A model's chat template, run in a sandbox: it comes from a file and may not act, only write text.

    Raises:
        RequestRefused: INVALID_REQUEST, on construction: the model has none, or it is not a template.
    """

    def __init__(self, card: ModelCard) -> None:
        if card.chat_template is None:
            raise RequestRefused(f"the model {card.name!r} has no chat template; send text or token ids instead")
        self._special_tokens = _special_tokens(card)
        try:
            self._template = _environment().from_string(card.chat_template)
        except _TEMPLATE_FAULTS as error:
            raise RequestRefused(f"the chat template of {card.name!r} is damaged: {error}") from None

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True) -> str:
        """Returns the prompt, ending where the model's answer begins if `add_generation_prompt`.

        Control tokens are in it by name: encode it with `parse_special`.

        Raises:
            RequestRefused: INVALID_REQUEST, there are no messages, or the template refuses them; its words.
        """
        if not messages:
            raise RequestRefused("messages is empty; a chat needs one at least")
        try:
            return self._template.render(
                messages=[asdict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except _TEMPLATE_FAULTS as error:
            raise RequestRefused(f"the chat template refused the messages: {error}") from None


def _environment() -> ImmutableSandboxedEnvironment:
    # The settings and names that templates are written for: those of Hugging Face transformers.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # a prompt is not HTML
        extensions=[jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise RequestRefused(f"a message's {name} is a text, not {type(value).__name__}")


def _special_tokens(card: ModelCard) -> dict[str, str]:
    if card.tokenizer is None:
        return {}
    tokens, bos, eos = card.tokenizer.tokens, card.tokenizer.bos_token_id, card.tokenizer.eos_token_id
    named = {"bos_token": bos, "eos_token": eos}
    return {name: tokens[token_id] for name, token_id in named.items() if token_id is not None}


def _to_json(value: object, indent: int | None = None) -> str:
    # Not jinja2's own filter, which escapes for HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().astimezone().strftime(format_)
