"""One conversation of a client, for callers with threads: prompts in, generations out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stagewire.client.generation import Generation
from stagewire.client.prompt import Message, prompt_of, snapshot_prompt
from stagewire.client.result import kept_tokens
from stagewire.wire.request import SnapshotWish
from stagewire.wire.sampling import SamplingParams

if TYPE_CHECKING:
    from stagewire.client.client import Client


class Session:
    """One conversation of a client; several requests of it may run at the same time."""

    def __init__(self, client: Client, session_id: str, model: str | None) -> None:
        self._client, self.session_id, self._model = client, session_id, model

    def generate(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        detokenize: bool = False,
        snapshot: SnapshotWish | None = None,
        restore: str | None = None,
    ) -> Generation:
        """Start an answer and return at once; iterate over it for tokens.

        Exactly one of the first three: `text` as it is, `messages` through the model's chat template, or token ids.

        Args:
            text: a prompt.
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
                always, what the prompt shares with it is restored, and the rest computed.

        Raises:
            RequestRefused: an argument is wrong; nothing was sent. What the broker refuses comes on iteration.
            StagewireError: no broker answers, where the tokenizer has to be fetched first.
        """
        prompt = prompt_of(text, messages, prompt_token_ids, sampling, max_tokens, stop, stop_token_ids, ignore_eos,
                           detokenize, snapshot, restore)  # fmt: skip
        return self._client.start(prompt, self.session_id, self._model)

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
        without the beginning of an answer, so that conversations that begin with them do.

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
        with self.generate(prompt_token_ids=[], max_tokens=0, snapshot=SnapshotWish(name, file=file)) as generation:
            return kept_tokens(generation.wait(), name)
