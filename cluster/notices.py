"""What a model that can be served will not do, said before it serves."""

from __future__ import annotations

from stagewire.wire.card import ModelCard
from stagewire.wire.errors import StagewireError


def text_notices(card: ModelCard) -> list[str]:
    """Returns a line for each of: no text at all, no chats, no end of answers.

    Where the extra `text` is not installed nobody here can tell what a tokenizer or a template is worth; then only
    what is missing is said.
    """
    if card.tokenizer is None:
        return [f"{card.name} has no vocabulary: only requests by token ids will work, neither `chat` nor `generate`"]
    notice = _of_tokenizer(card) or _of_template(card)
    notices = [notice] if notice else []
    if not card.stop_token_ids:
        notices.append(f"{card.name} names no token that ends an answer: answers go on to --max-tokens")
    return notices


def _of_tokenizer(card: ModelCard) -> str:
    try:
        from stagewire.client.text.tokenizer import Tokenizer  # noqa: PLC0415  # of an extra

        Tokenizer(card)
    except ImportError:
        return ""
    except StagewireError as error:
        return f"{card.name} understands no text here: {error.detail}"
    return ""


def _of_template(card: ModelCard) -> str:
    if card.chat_template is None:
        return f"{card.name} has no chat template: `chat` will not work, `generate` only with --raw"
    try:
        from stagewire.client.text.message import ChatMessage  # noqa: PLC0415  # of an extra
        from stagewire.client.text.template import ChatTemplate  # noqa: PLC0415

        ChatTemplate(card).render([ChatMessage("user", "Hello.")])
    except ImportError:
        return ""
    except StagewireError as error:
        return f"{card.name} cannot chat, `generate` works only with --raw: {error.detail}"
    return ""
