"""How much of a conversation the cluster can hold: what a prompt takes, against the room that there is."""
# ruff: noqa: PLC0415  # imports wait until they are needed

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stagewire.cli.chat.core.conversation import Message
from stagewire.wire.errors import RequestRefused

if TYPE_CHECKING:
    from stagewire.client import Client
    from stagewire.wire.status import Status

_SHARE_OF_ANSWER = 4
"""Where nothing limits an answer it should find this part of the room free, the others are the conversation's."""


@dataclass(frozen=True, slots=True)
class Context:
    """`room` tokens for prompt and answer, of which the answer wants `answer`."""

    client: Client
    room: int
    answer: int

    @classmethod
    def of(cls, client: Client, max_tokens: int | None) -> Context:
        """What the cluster holds now, snapshots left out of account.

        Raises:
            StagewireError: it does not answer.
        """
        room = _room(client.status())
        return cls(client, room, room // _SHARE_OF_ANSWER if max_tokens is None else max_tokens)

    def at_its_end(self) -> Context:
        """The same for an answer that may be as short as it must."""
        return replace(self, answer=1)

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether these and an answer find room."""
        from stagewire.client.prompt import Prompt

        prompt = Prompt(messages=[{"role": message.role, "content": message.content} for message in messages])
        try:
            request, _ = self.client.prepare(prompt, "", None)
        except RequestRefused:  # longer than any message
            return False
        return len(request.prompt_token_ids) + self.answer <= self.room


def _room(status: Status) -> int:
    """The shortest of context and KV pools; an answer's last token needs no room in the pool, but in the context."""
    pools = [stage.info.num_blocks * stage.info.block_size for stage in status.stages if stage.pipeline is not None]
    contexts = [model.context_length - 1 for model in status.models]
    return min([*pools, *contexts], default=0)
