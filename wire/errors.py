"""Every error that Stagewire raises or sends, and its stable code; it must not know who raises them."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from stagewire.wire.limits import MAX_DETAIL_CHARS
from stagewire.wire.printable import printable


class ErrorCode(str, Enum):
    """Stable names on the wire and in `--json` output. Never rename one; add another."""

    # The request cannot be served as it is asked.
    INVALID_REQUEST = "invalid_request"
    CONTEXT_OVERFLOW = "context_overflow"
    DECODE_SEED_MISSING = "decode_seed_missing"
    TOKEN_OUT_OF_VOCABULARY = "token_out_of_vocabulary"
    UNKNOWN_MODEL = "unknown_model"
    IDENTITY_IN_USE = "identity_in_use"
    SNAPSHOT_LIMIT = "snapshot_limit"
    SNAPSHOT_NOT_FOUND = "snapshot_not_found"
    SNAPSHOT_FILE = "snapshot_file"
    # The service cannot take it now; the same request may succeed later.
    QUEUE_FULL = "queue_full"
    CLIENT_LIMIT = "client_limit"
    QUEUE_TIMEOUT = "queue_timeout"
    NO_PIPELINE = "no_pipeline"
    SHUTTING_DOWN = "shutting_down"
    # It was running and could not be finished.
    STAGE_LOST = "stage_lost"
    PREFILL_FAILED = "prefill_failed"
    DECODE_FAILED = "decode_failed"
    RESTORE_INCOMPLETE = "restore_incomplete"
    CLIENT_GONE = "client_gone"
    UNREACHABLE = "unreachable"
    # The peer's bytes.
    PROTOCOL_ERROR = "protocol_error"
    PROTOCOL_VERSION = "protocol_version"
    MESSAGE_TOO_LARGE = "message_too_large"
    # The model file.
    MODEL_FILE_INVALID = "model_file_invalid"
    UNSUPPORTED_ARCHITECTURE = "unsupported_architecture"
    UNSUPPORTED_TENSOR_TYPE = "unsupported_tensor_type"
    UNSUPPORTED_TOKENIZER = "unsupported_tokenizer"
    # This process.
    CLIENT_CLOSED = "client_closed"
    OTHER_PROCESS = "other_process"
    INVALID_SETTING = "invalid_setting"
    INVALID_LAYER_RANGE = "invalid_layer_range"
    PORT_IN_USE = "port_in_use"
    STAGE_START_FAILED = "stage_start_failed"
    DESCRIPTOR_LIMIT = "descriptor_limit"
    INTERNAL = "internal"


RETRYABLE = frozenset(
    {
        ErrorCode.QUEUE_FULL,
        ErrorCode.CLIENT_LIMIT,
        ErrorCode.QUEUE_TIMEOUT,
        ErrorCode.NO_PIPELINE,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.STAGE_LOST,
        ErrorCode.UNREACHABLE,
    }
)


class StagewireError(Exception):
    """Base of all errors: a stable `code`, a `detail` that says what to do, and whether to retry."""

    default_code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    kept: ClassVar[str] = ""
    """Characters of a detail that stay although they are not printable; else it is one line."""

    def __init__(self, detail: str, code: ErrorCode | None = None) -> None:
        # Whatever a library or a file's name brought into it, a detail must fit into a message, and be shown as it is.
        detail = printable(detail[:MAX_DETAIL_CHARS], self.kept)[:MAX_DETAIL_CHARS]
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.default_code

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.detail!r}, {self.code.value})"

    @property
    def retryable(self) -> bool:
        return self.code in RETRYABLE


class ProtocolError(StagewireError):
    """A peer's bytes are not a message of this protocol; nothing of them was applied.

    `request_id` names the request that the message spoke of, when it got that far.
    """

    default_code = ErrorCode.PROTOCOL_ERROR

    def __init__(self, detail: str, code: ErrorCode | None = None, request_id: str | None = None) -> None:
        super().__init__(detail, code)
        self.request_id = request_id


class RequestRefused(StagewireError):
    """A request was not accepted; nothing of it has run."""

    default_code = ErrorCode.INVALID_REQUEST


class RequestFailed(StagewireError):
    """An accepted request ended without finishing; the tokens delivered before it stay valid."""

    default_code = ErrorCode.STAGE_LOST


class ModelError(StagewireError):
    """A model file is missing, damaged, or holds something this version cannot run."""

    default_code = ErrorCode.MODEL_FILE_INVALID


class SettingsError(StagewireError):
    """A setting is outside its limits; the process has not started."""

    default_code = ErrorCode.INVALID_SETTING


class ClusterError(StagewireError):
    """A process of a local cluster did not start or did not answer; all of them were stopped."""

    default_code = ErrorCode.STAGE_START_FAILED
    kept = "\n\t"  # it quotes lines of a log


class InvalidTransition(AssertionError):
    """Our own bug: a state machine received an event that its transition table lacks."""

    def __init__(self, key: object, state: object, event: object, history: list[object]) -> None:
        super().__init__(f"{key}: no transition from {state} on {event}; history: {history}")
        self.key, self.state, self.event, self.history = key, state, event, history
