"""The public face of the client, for callers with threads."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import TYPE_CHECKING

from stagewire.client.cards import CardCache, checked_card
from stagewire.client.generation import Generation
from stagewire.client.loop import ClientLoop
from stagewire.client.prompt import Message, Prompt, prompt_of
from stagewire.client.result import kept_tokens
from stagewire.client.settings import ClientSettings
from stagewire.client.transcript import Transcript
from stagewire.wire.caches import AskCaches, Caches
from stagewire.wire.card import ModelCard
from stagewire.wire.codec import Message as WireMessage
from stagewire.wire.errors import ErrorCode, RequestRefused, StagewireError
from stagewire.wire.frontend import BrokerWelcome, Card, Generate, GetCard, GetStatus, ModelInfo
from stagewire.wire.request import SnapshotWish
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.snapshots import AskSnapshots, Snapshots
from stagewire.wire.status import Status

if TYPE_CHECKING:
    from stagewire.client.text.tokenizer import Tokenizer

_ANSWER_S = 10.0


class Client:
    """A connection to a broker and all that runs over it; any thread may use it. Close it, or use it with `with`.

    Args:
        endpoint: the broker's frontend, `tcp://HOST:PORT`.
        settings: everything else; its `endpoint` counts when it is given.

    Raises:
        SettingsError: a setting is outside its limits.
    """

    def __init__(self, endpoint: str = "tcp://127.0.0.1:7070", *, settings: ClientSettings | None = None) -> None:
        self.settings = settings or ClientSettings(endpoint=endpoint)
        self.loop = ClientLoop(self.settings)
        self._finalizer = weakref.finalize(self, self.loop.close)
        self._cards = CardCache(self.settings.cache_folder)
        self._tokenizers: dict[str, Tokenizer] = {}
        self._card_of: dict[str, ModelCard] = {}

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

    def snapshots(self) -> Snapshots:
        """The snapshots that this client has, by pipeline and name.

        Raises:
            StagewireError: as `models`.
        """
        return self._ask_snapshots(None)

    def free_snapshot(self, name: str) -> Snapshots:
        """Give up a snapshot, on every pipeline that has it; returns those that are left.

        Raises:
            StagewireError: as `models`.
        """
        return self._ask_snapshots(name)

    def _ask_snapshots(self, free: str | None) -> Snapshots:
        answer = self._ask(AskSnapshots(free))
        assert isinstance(answer, Snapshots)
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
            raise RequestRefused("text needs an extra: pip install 'stagewire[text]'") from error
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

    def _ask(self, message: WireMessage | None) -> WireMessage:
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

    def start(self, prompt: Prompt, session_id: str, model: str | None) -> Generation:
        """Send a request. `Session.generate` is the pleasant way to call this."""
        return Generation(self, self.loop, *self.prepare(prompt, session_id, model))

    def prepare(self, prompt: Prompt, session_id: str, model: str | None) -> tuple[Generate, Transcript]:
        """The request to send, and the empty answer to it."""
        card, tokenizer = None, None
        if prompt.needs_tokenizer:
            info = self._model(model)
            # The text belongs to this model from now on, whatever else is served.
            model = info.name
            tokenizer, card = self._tokenizer(info.card_digest), self._card(info.card_digest)
        token_ids = prompt.token_ids(card, tokenizer)
        return prompt.request(session_id, model, token_ids), prompt.transcript(len(token_ids), tokenizer)

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

        Raises:
            RequestRefused: an argument is wrong; nothing was sent. What the broker refuses comes on iteration.
            StagewireError: no broker answers, where the tokenizer has to be fetched first.
        """
        prompt = prompt_of(text, messages, prompt_token_ids, sampling, max_tokens, stop, stop_token_ids, ignore_eos,
                           detokenize, snapshot)  # fmt: skip
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

        It lasts as long as the pipeline does. Any prompt that begins with it finds it there.

        Raises:
            RequestRefused: as `generate`; SNAPSHOT_LIMIT, too much is kept already.
            RequestFailed: it could not be computed, or not be kept on all stages.
        """
        wish = SnapshotWish(name)
        given = self.generate(
            text, messages=messages, prompt_token_ids=prompt_token_ids, max_tokens=0, snapshot=wish
        )  # fmt: skip
        with given as generation:
            return kept_tokens(generation.wait(), name)
