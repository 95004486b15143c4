"""The public face of the client, for callers with threads."""

from __future__ import annotations

import secrets
import weakref
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from stagewire.client.answer import Transcript
from stagewire.client.cards import CardCache, checked_card
from stagewire.client.generation import Generation
from stagewire.client.links.loop import ClientLoop
from stagewire.client.prompt import GenerateOptions, Prompt
from stagewire.client.session import Session
from stagewire.client.settings import ClientSettings
from stagewire.wire.cache_reports import AskCaches, Caches
from stagewire.wire.card import ModelCard
from stagewire.wire.codec import Message as WireMessage
from stagewire.wire.errors import ErrorCode, RequestRefused, StagewireError
from stagewire.wire.extras import install_command
from stagewire.wire.frontend import BrokerWelcome, Card, Generate, GetCard, GetStatus, ModelInfo
from stagewire.wire.snapshots import AskSnapshots, SnapshotAction, SnapshotInfo, SnapshotOrder, Snapshots
from stagewire.wire.status import Status

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stagewire.client.text.tokenizer import Tokenizer

_ANSWER_S = 10.0
_EXPORT_S = 70.0


class Client:
    """A connection to a broker and all that runs over it; any thread may use it. Close it, or use it with `with`.

    Args:
        endpoint: the broker's frontend: a port of this machine, `HOST:PORT` or `tcp://HOST:PORT`. When not given,
            what the environment variable STAGEWIRE_ENDPOINT says, else port 7070 of this machine.
        settings: everything else; its `endpoint` counts when it is given.

    Raises:
        SettingsError: a setting is outside its limits.
    """

    def __init__(self, endpoint: str | None = None, *, settings: ClientSettings | None = None) -> None:
        self.settings = settings or (ClientSettings() if endpoint is None else ClientSettings(endpoint=endpoint))
        self.loop = ClientLoop(self.settings)
        self._finalizer = weakref.finalize(self, self.loop.close)
        self._cards = CardCache(self.settings.cache_folder)
        self._tokenizers: dict[str, Tokenizer] = {}
        self._card_of: dict[str, ModelCard] = {}

    def __repr__(self) -> str:
        return f"<Client {self.settings.client_id!r} of {self.settings.endpoint}{self.loop.describe()}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client belongs to the process that made it: make one there")

    # --- questions ---

    def models(self) -> tuple[ModelInfo, ...]:
        """The models that the broker serves.

        Raises:
            StagewireError: UNREACHABLE, no broker answers; RequestRefused: it does not want this client.
        """
        # Asked anew: a broker greets before its stages have registered.
        return self.status().models

    def status(self) -> Status:
        """What the broker knows of its pool.

        Raises:
            StagewireError: as `models`.
        """
        answer = self._ask(GetStatus())
        assert isinstance(answer, Status)
        return answer

    def caches(self) -> Caches:
        """What the prefix cache of each stage holds and has done.

        Raises:
            StagewireError: as `models`.
        """
        answer = self._ask(AskCaches(clear=False))
        assert isinstance(answer, Caches)
        return answer

    def clear_caches(self) -> Caches:
        """Have all stages forget what no running request uses; tells how much that was.

        Raises:
            StagewireError: as `models`.
        """
        answer = self._ask(AskCaches(clear=True))
        assert isinstance(answer, Caches)
        return answer

    def snapshots(self, *, owner: str = "") -> Snapshots:
        """The snapshots that this client has, or the client called `owner`, by pipeline and name.

        Raises:
            StagewireError: as `models`.
        """
        return self._order_snapshots(SnapshotOrder(owner=owner))

    def all_snapshots(self) -> Snapshots:
        """Those of all clients; `client_id` tells whose one is, `num_own_blocks` what freeing it would give.

        Raises:
            StagewireError: as `models`.
        """
        return self._order_snapshots(SnapshotOrder(SnapshotAction.LIST_ALL))

    def snapshot_info(self, name: str) -> SnapshotInfo | None:
        """What is known of one snapshot; None if there is none of this name.

        Raises:
            StagewireError: as `models`.
        """
        return next((one for one in self.snapshots().items if one.name == name), None)

    def free_snapshot(self, name: str, *, owner: str = "") -> Snapshots:
        """Give up a snapshot of this client, or of `owner`, on every pipeline that has it; returns those that are left.

        `num_freed` says how many pipelines had one.

        Raises:
            StagewireError: as `models`.
        """
        return self._order_snapshots(SnapshotOrder(SnapshotAction.FREE, name, owner=owner))

    def free_all_snapshots(self, *, owner: str = "") -> Snapshots:
        """Give up all snapshots of this client, or of `owner`; `num_freed` says how many there were.

        Raises:
            StagewireError: as `models`.
        """
        return self._order_snapshots(SnapshotOrder(SnapshotAction.FREE_ALL, owner=owner))

    def rename_snapshot(self, name: str, new_name: str) -> Snapshots:
        """Give a snapshot another name; one that had it is freed.

        Raises:
            StagewireError: SNAPSHOT_NOT_FOUND; INVALID_REQUEST, the new name is none; else as `models`.
        """
        return self._order_snapshots(SnapshotOrder(SnapshotAction.RENAME, name, new_name))

    def export_snapshot(self, name: str, file: str | None = None) -> Snapshots:
        """Have every stage write its part into its snapshot directory, as `file` (default: `name`).

        `Session.import_snapshot` brings it back, for any client, into a pipeline of the same cut. Export under the
        same file name again to replace it.

        Raises:
            StagewireError: SNAPSHOT_NOT_FOUND; SNAPSHOT_FILE, a stage has no directory or cannot write there, or the
                file is another client's; INVALID_REQUEST, the file's name is none; else as `models`.
        """
        return self._order_snapshots(SnapshotOrder(SnapshotAction.EXPORT, name, file or name))

    def _order_snapshots(self, order: SnapshotOrder) -> Snapshots:
        is_export = order.action is SnapshotAction.EXPORT
        answer = self._ask(AskSnapshots(order), _EXPORT_S if is_export else None)
        assert isinstance(answer, Snapshots)
        if answer.code:
            raise StagewireError(answer.detail, answer.code)
        return answer

    def connect(self) -> None:
        """Wait until the broker has welcomed this client.

        Raises:
            StagewireError: as `models`.
        """
        assert isinstance(self._ask(None), BrokerWelcome)

    def card(self, model: str | None = None) -> ModelCard:
        """Configuration, tokenizer data and chat template of a served model; fetched once by digest.

        Raises:
            RequestRefused: UNKNOWN_MODEL, or NO_PIPELINE while no first stage is there.
            StagewireError: as `models`.
        """
        return self._card(self._model(model).card_digest)

    def tokenizer(self, model: str | None = None) -> Tokenizer:
        """The model's tokenizer; needs the extra `text`.

        Raises:
            RequestRefused: as `card`; INVALID_REQUEST, the extra is not installed.
            StagewireError: as `card`; UNSUPPORTED_TOKENIZER.
        """
        return self._tokenizer(self._model(model).card_digest)

    def _card(self, digest: str) -> ModelCard:
        if digest not in self._card_of:
            self._card_of[digest] = self._cards.get(digest) or self._fetch_card(digest)
        return self._card_of[digest]

    def _tokenizer(self, digest: str) -> Tokenizer:
        try:
            from stagewire.client.text.tokenizer import Tokenizer  # noqa: PLC0415
        except ImportError as error:
            raise RequestRefused(f"text needs an extra: {install_command('text')}") from error
        if digest not in self._tokenizers:
            self._tokenizers[digest] = Tokenizer(self._card(digest))
        return self._tokenizers[digest]

    def _model(self, name: str | None) -> ModelInfo:
        models = [info for info in self.models() if name in (None, info.name) and info.card_digest]
        if not models and name is not None:
            raise RequestRefused(f"model {name!r} is not served", ErrorCode.UNKNOWN_MODEL)
        if not models:
            raise RequestRefused("no model is served yet; is a first stage running?", ErrorCode.NO_PIPELINE)
        return models[0]

    def _fetch_card(self, digest: str) -> ModelCard:
        answer = self._ask(GetCard(digest))
        assert isinstance(answer, Card)
        data = bytes(answer.data.data)
        if not data:
            raise RequestRefused("the broker cannot get the model card now", ErrorCode.NO_PIPELINE)
        card = checked_card(data, digest)
        self._cards.put(digest, data)
        return card

    def _ask(self, message: WireMessage | None, timeout_s: float | None = None) -> WireMessage:
        if timeout_s is None:
            timeout_s = max(self.settings.connect_timeout_s, 0.01) if message is None else _ANSWER_S
            timeout_s = min(timeout_s, self.settings.connect_timeout_s)
        future = self.loop.ask(message, timeout_s)
        try:
            return future.result(timeout=timeout_s + 2)
        except FutureTimeoutError as error:
            raise StagewireError("the client's thread does not answer", ErrorCode.UNREACHABLE) from error

    # --- generating ---

    def session(self, session_id: str | None = None, model: str | None = None) -> Session:
        """A conversation: its requests go to the pipeline that saw it last, where that stands."""
        return Session(self, session_id or secrets.token_hex(8), model)

    def generate(
        self, text: str | None = None, *, model: str | None = None, **options: Unpack[GenerateOptions]
    ) -> Generation:
        """Start an answer that belongs to no conversation, and return at once; iterate over it for tokens.

        As `Session.generate` of a session that is used once, so that several of these spread over all pipelines.

        Args:
            text: the prompt, unless there is one in `options`.
            model: the name of a served model; None takes whatever is served.
            **options: see `GenerateOptions`.

        Raises:
            RequestRefused, StagewireError: as `Session.generate`.
        """
        return self.session(model=model).generate(text, **options)

    def start(self, prompt: Prompt, session_id: str, model: str | None) -> Generation:
        """Send a request. `Session.generate` is the pleasant way to call this."""
        return Generation(self, self.loop, *self.prepare(prompt, session_id, model))

    def prepare(self, prompt: Prompt, session_id: str, model: str | None) -> tuple[Generate, Transcript]:
        """The request to send, and the empty answer to it."""
        card, tokenizer = None, None
        if prompt.needs_card:
            info = self._model(model)
            # Text and sampling belong to this model from now on, whatever else is served.
            model = info.name
            card = self._card(info.card_digest)
            tokenizer = self._tokenizer(info.card_digest) if prompt.needs_tokenizer else None
        request = prompt.request(session_id, model, prompt.token_ids(card, tokenizer), card)
        return request, prompt.transcript(request, tokenizer)

    # --- the end ---

    def close(self) -> None:
        """Cancel what runs and leave; takes two seconds at most."""
        self._finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
