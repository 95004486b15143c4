"""The public face of the client for asyncio: what may block runs in a thread, tokens come into the event loop."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from stagewire.client.async_generation import AsyncGeneration, Mailbox
from stagewire.client.client import Client
from stagewire.client.prompt import GenerateOptions, Message, Prompt, asked, snapshot_prompt
from stagewire.client.result import kept_tokens
from stagewire.client.settings import ClientSettings
from stagewire.wire.cache_reports import Caches
from stagewire.wire.card import ModelCard
from stagewire.wire.frontend import ModelInfo
from stagewire.wire.request import SnapshotRequest
from stagewire.wire.snapshots import SnapshotInfo, Snapshots
from stagewire.wire.status import Status

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stagewire.client.text.tokenizer import Tokenizer


class AsyncClient:
    """A connection to a broker and all that runs over it, for asyncio. Close it, or use it with `async with`.

    It may be made before an event loop runs; its generations belong to the loop in which they were started.

    Args:
        endpoint: the broker's frontend, `tcp://HOST:PORT`.
        settings: everything else; its `endpoint` counts when it is given.

    Raises:
        SettingsError: a setting is outside its limits.
    """

    def __init__(self, endpoint: str | None = None, *, settings: ClientSettings | None = None) -> None:
        self._client = Client(endpoint, settings=settings)
        self._mailbox: Mailbox | None = None

    def __repr__(self) -> str:
        return repr(self._client).replace("<", "<Async", 1)

    async def models(self) -> tuple[ModelInfo, ...]:
        """The models that the broker serves.

        Raises:
            StagewireError: UNREACHABLE, no broker answers; RequestRefused: it does not want this client.
        """
        return await asyncio.to_thread(self._client.models)

    async def status(self) -> Status:
        """What the broker knows of its pool.

        Raises:
            StagewireError: as `models`.
        """
        return await asyncio.to_thread(self._client.status)

    async def caches(self) -> Caches:
        """What the prefix cache of each stage holds and has done.

        Raises:
            StagewireError: as `models`.
        """
        return await asyncio.to_thread(self._client.caches)

    async def clear_caches(self) -> Caches:
        """Have all stages forget what no running request uses; tells how much that was.

        Raises:
            StagewireError: as `models`.
        """
        return await asyncio.to_thread(self._client.clear_caches)

    async def snapshots(self, *, owner: str = "") -> Snapshots:
        """The snapshots of `owner`, or of this client, by pipeline and name.

        Raises:
            StagewireError: as `models`.
        """
        return await asyncio.to_thread(self._client.snapshots, owner=owner)

    async def all_snapshots(self) -> Snapshots:
        """The snapshots of all clients, with what each would give back and when it goes by itself.

        Raises:
            StagewireError: as `models`.
        """
        return await asyncio.to_thread(self._client.all_snapshots)

    async def snapshot_info(self, name: str) -> SnapshotInfo | None:
        """What is known of one snapshot; None if there is none of this name.

        Raises:
            StagewireError: as `models`.
        """
        return await asyncio.to_thread(self._client.snapshot_info, name)

    async def rename_snapshot(self, name: str, new_name: str) -> Snapshots:
        """Give a snapshot another name; one that had it is freed.

        Raises:
            StagewireError: SNAPSHOT_NOT_FOUND; INVALID_REQUEST, the new name is none; else as `models`.
        """
        return await asyncio.to_thread(self._client.rename_snapshot, name, new_name)

    async def export_snapshot(self, name: str, file: str | None = None) -> Snapshots:
        """Have every stage write its part into its snapshot directory, as `file` (default: `name`).

        `AsyncSession.import_snapshot` brings it back, for any client, into a pipeline of the same cut. Export under the
        same file name again to replace it.

        Raises:
            StagewireError: SNAPSHOT_NOT_FOUND; SNAPSHOT_FILE, a stage has no directory or cannot write there, or the
                file is another client's; INVALID_REQUEST, the file's name is none; else as `models`.
        """
        return await asyncio.to_thread(self._client.export_snapshot, name, file)

    async def free_snapshot(self, name: str, *, owner: str = "") -> Snapshots:
        """Give up a snapshot of `owner`, or of this client, on every pipeline that has it; returns those that are left.

        Raises:
            StagewireError: as `models`.
        """
        return await asyncio.to_thread(self._client.free_snapshot, name, owner=owner)

    async def free_all_snapshots(self, *, owner: str = "") -> Snapshots:
        """Give up all snapshots of `owner`, or of this client.

        Raises:
            StagewireError: as `models`.
        """
        return await asyncio.to_thread(self._client.free_all_snapshots, owner=owner)

    async def connect(self) -> None:
        """Wait until the broker has welcomed this client.

        Raises:
            StagewireError: as `models`.
        """
        await asyncio.to_thread(self._client.connect)

    async def card(self, model: str | None = None) -> ModelCard:
        """Configuration, tokenizer data and chat template of a served model; fetched once by digest.

        Raises:
            RequestRefused: UNKNOWN_MODEL, or NO_PIPELINE while no first stage is there.
            StagewireError: as `models`.
        """
        return await asyncio.to_thread(self._client.card, model)

    async def tokenizer(self, model: str | None = None) -> Tokenizer:
        """The model's tokenizer; needs the extra `text`.

        Raises:
            RequestRefused: as `card`; INVALID_REQUEST, the extra is not installed.
            StagewireError: as `card`; UNSUPPORTED_TOKENIZER.
        """
        return await asyncio.to_thread(self._client.tokenizer, model)

    def session(self, session_id: str | None = None, model: str | None = None) -> AsyncSession:
        """A conversation: its requests go to the pipeline that saw it last, where that stands."""
        return AsyncSession(self, session_id or secrets.token_hex(8), model)

    async def generate(
        self, text: str | None = None, *, model: str | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncGeneration:
        """Start an answer that belongs to no conversation; await it, then iterate over it for tokens.

        As `AsyncSession.generate` of a session that is used once, so that several of these spread over all pipelines.

        Args:
            text: the prompt, unless there is one in `options`.
            model: the name of a served model; None takes whatever is served.
            **options: see `GenerateOptions`.

        Raises:
            RequestRefused, StagewireError: as `AsyncSession.generate`.
        """
        return await self.session(model=model).generate(text, **options)

    async def start(self, prompt: Prompt, session_id: str, model: str | None) -> AsyncGeneration:
        """Send a request. `AsyncSession.generate` is the pleasant way to call this."""
        if prompt.needs_card:
            # Fetching a card and tokenizing may take a while: not in the event loop.
            request = await asyncio.to_thread(self._client.prepare, prompt, session_id, model)
        else:
            request = self._client.prepare(prompt, session_id, model)
        event_loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.event_loop is not event_loop:
            self._mailbox = Mailbox(event_loop)
        return AsyncGeneration(self._client, self._mailbox, *request)

    async def close(self) -> None:
        """Cancel what runs and leave; takes two seconds at most, in which the event loop goes on."""
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSession:
    """One conversation of an `AsyncClient`; several requests of it may run at the same time."""

    def __init__(self, client: AsyncClient, session_id: str, model: str | None) -> None:
        self._client, self.session_id, self._model = client, session_id, model

    def __repr__(self) -> str:
        model = f" with {self._model}" if self._model else ""
        return f"<AsyncSession {self.session_id!r}{model} of {self._client!r}>"

    async def generate(self, text: str | None = None, **options: Unpack[GenerateOptions]) -> AsyncGeneration:
        """Start an answer to `text`, or to a prompt in `options`; await it, then iterate over it for tokens.

        Raises:
            RequestRefused: an argument is wrong; nothing was sent. What the broker refuses comes on iteration.
            StagewireError: no broker answers, where the tokenizer has to be fetched first.
        """
        return await self._client.start(asked(text, options), self.session_id, self._model)

    async def snapshot(
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
        async with await self._client.start(prompt, self.session_id, self._model) as generation:
            return kept_tokens(await generation.wait(), name)

    async def import_snapshot(self, name: str, file: str) -> int:
        """Read what was exported as `file` and keep it under `name`; returns its length in tokens.

        It is this client's from then on. All stages hold it, or none.

        Raises:
            RequestFailed: SNAPSHOT_FILE, the file is not there, damaged, or of another model, precision or cut;
                SNAPSHOT_LIMIT, too much is kept already; QUEUE_FULL, too much is read and written at the moment.
            RequestRefused: INVALID_REQUEST, a name is none; QUEUE_FULL.
        """
        wanted = SnapshotRequest(name, file=file)
        async with await self.generate(prompt_token_ids=[], max_tokens=0, snapshot=wanted) as generation:
            return kept_tokens(await generation.wait(), name)
