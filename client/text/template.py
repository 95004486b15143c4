"""Chat messages to one prompt text, by the template in a model card; it never tokenizes."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from stagewire.client.text.message import ChatMessage, Fields
from stagewire.client.text.sandbox import Sandbox
from stagewire.wire.card import ModelCard
from stagewire.wire.errors import RequestRefused

# What a template, which is a program, can run into besides its own errors.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
_PROBE = "xyzzy plugh"


class ChatTemplate:
    """A model's chat template, run in a sandbox: it comes from a file and may not act, only write text.

    Raises:
        RequestRefused: INVALID_REQUEST, on construction: the model has none, or it is not a template.
    """

    def __init__(self, card: ModelCard) -> None:
        if card.chat_template is None:
            raise RequestRefused(f"the model {card.name!r} has no chat template; send text or token ids instead")
        self.source = card.chat_template
        self._special_tokens = _special_tokens(card)
        self._sandbox = Sandbox()
        try:
            self._template = self._sandbox.compiled(card.chat_template)
        except _TEMPLATE_FAULTS as error:
            raise RequestRefused(f"the chat template of {card.name!r} is damaged: {error}") from None

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True) -> str:
        """Returns the prompt, ending where the model's answer begins if `add_generation_prompt`.

        Control tokens are in it by name; so are their names in the messages, if there are any. `Chat` tells them
        apart.

        Raises:
            RequestRefused: INVALID_REQUEST, there are no messages, or the template refuses them; its words.
        """
        return self.render_fields([message.fields() for message in messages], add_generation_prompt)

    def render_fields(self, messages: Sequence[Fields], add_generation_prompt: bool) -> str:
        """As `render`, of messages as a template is given them.

        Raises:
            RequestRefused: as `render`.
        """
        if not messages:
            raise RequestRefused("messages is empty; a chat needs one at least")
        self._sandbox.restart(sum(len(str(message.get("content"))) for message in messages))
        try:
            return "".join(
                self._sandbox.written(piece)
                for piece in self._template.generate(
                    messages=messages,
                    tools=None,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                    **self._special_tokens,
                )
            )
        except _TEMPLATE_FAULTS as error:
            words = str(error) or type(error).__name__
            raise RequestRefused(f"the chat template refused the messages: {words}") from None

    def reads_parts(self) -> bool:
        """Whether it takes a content in parts apart; else it wants one text."""
        content: Fields = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
        try:
            written = self.render_fields([content], add_generation_prompt=False)
        except RequestRefused:
            return False
        return _PROBE in written and "'type'" not in written and '"type"' not in written


def _special_tokens(card: ModelCard) -> dict[str, str]:
    if card.tokenizer is None:
        return {}
    tokens, bos, eos = card.tokenizer.tokens, card.tokenizer.bos_token_id, card.tokenizer.eos_token_id
    named = {"bos_token": bos, "eos_token": eos}
    return {name: tokens[token_id] for name, token_id in named.items() if token_id is not None}
