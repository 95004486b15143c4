"""One conversation of a client, for callers with threads: prompts in, generations out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stagewire.client.generation import Generation
from stagewire.client.prompt import GenerateOptions, Message, asked, snapshot_prompt
from stagewire.client.result import kept_tokens
from stagewire.wire.request import SnapshotRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stagewire.client.client import Client


class Session:
    """One conversation of a client; several requests of it may run at the same time."""

    def __init__(self, client: Client, session_id: str, model: str | None) -> None:
        self._client, self.session_id, self._model = client, session_id, model

    def __repr__(self) -> str:
        model = f" with {self._model}" if self._model else ""
        return f"<Session {self.session_id!r}{model} of {self._client!r}>"

    def generate(self, text: str | None = None, **options: Unpack[GenerateOptions]) -> Generation:
        """Start an answer to `text`, or to a prompt in `options`, and return at once; iterate over it for tokens.

        Raises:
            RequestRefused: an argument is wrong; nothing was sent. What the broker refuses comes on iteration.
            StagewireError: no broker answers, where the model card has to be fetched first: for text, and for the
                model's own sampling.
        """
        return self._client.start(asked(text, options), self.session_id, self._model)

    def snapshot(
        self,
        name: str,
        text: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        prompt_token_ids: Sequence[int] | None = None,
    ) -> int:
        """Compute a prompt and keep it on all stages under `name` until it is freed; returns its length in tokens.

        It lasts as long as the pipeline does. Any prompt that begins with it finds it there; `messages` are kept
        without the beginning of an answer, so that conversations that begin with them do. A text is taken as it is, as
        `generate` does with `raw`.

        Raises:
            RequestRefused: as `generate`; SNAPSHOT_LIMIT, too much is kept already.
            RequestFailed: it could not be computed, or not be kept on all stages.
        """
        prompt = snapshot_prompt(name, text, messages, prompt_token_ids)
        with self._client.start(prompt, self.session_id, self._model) as generation:
            return kept_tokens(generation.wait(), name)

    def import_snapshot(self, name: str, file: str) -> int:
        """Read what was exported as `file` and keep it under `name`; returns its length in tokens.

        It is this client's from then on. All stages hold it, or none.

        Raises:
            RequestFailed: SNAPSHOT_FILE, the file is not there, damaged, or of another model, precision or cut;
                SNAPSHOT_LIMIT, too much is kept already; QUEUE_FULL, too much is read and written at the moment.
            RequestRefused: INVALID_REQUEST, a name is none; QUEUE_FULL.
        """
        with self.generate(prompt_token_ids=[], max_tokens=0, snapshot=SnapshotRequest(name, file=file)) as generation:
            return kept_tokens(generation.wait(), name)
