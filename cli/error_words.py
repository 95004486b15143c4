"""Every error code in a person's words: what it means, and what to do. Commands, chat and docs/errors.md read it."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Words:
    """What happened, and the next step of whoever reads it; sentences without a capital and a full stop."""

    meaning: str
    next_step: str


_IN_A_MOMENT = "ask again in a moment"

ERROR_WORDS = {
    ErrorCode.INVALID_REQUEST: Words(
        "something in the request is not as it must be", "change what the message names, and ask again"
    ),
    ErrorCode.CONTEXT_OVERFLOW: Words(
        "the prompt and the answer that is wanted are longer than the model can hold",
        "shorten the prompt, or ask for fewer tokens (--max-tokens; in a chat `/set max_tokens N`)",
    ),
    ErrorCode.DECODE_SEED_MISSING: Words("the prompt is empty", "give at least one token to begin with"),
    ErrorCode.TOKEN_OUT_OF_VOCABULARY: Words(
        "a token id is none of the model's", "send text, or take the ids from this model's own tokenizer"
    ),
    ErrorCode.UNKNOWN_MODEL: Words(
        "no such model is known or served",
        "`stagewire models` lists the known ones; the path of a .gguf file will do too",
    ),
    ErrorCode.IDENTITY_IN_USE: Words(
        "another client with this name is connected", "end it, or choose another name (--client-id)"
    ),
    ErrorCode.SNAPSHOT_LIMIT: Words(
        "there is no room left for what shall be kept", "`stagewire snapshot free NAME` makes room"
    ),
    ErrorCode.SNAPSHOT_NOT_FOUND: Words("no snapshot has this name", "`stagewire snapshot list` shows which there are"),
    ErrorCode.SNAPSHOT_FILE: Words(
        "a snapshot's file cannot be used",
        "check the stages' --snapshot-directory, and that model and cut are the same",
    ),
    ErrorCode.QUEUE_FULL: Words("too many requests are waiting", _IN_A_MOMENT),
    ErrorCode.CLIENT_LIMIT: Words(
        "this client, or all clients together, have as much under way as they may", _IN_A_MOMENT
    ),
    ErrorCode.QUEUE_TIMEOUT: Words("the request waited too long for its turn", _IN_A_MOMENT),
    ErrorCode.NO_PIPELINE: Words(
        "no complete chain of stages serves the model", "`stagewire status` says what is missing"
    ),
    ErrorCode.SHUTTING_DOWN: Words("the server is stopping", _IN_A_MOMENT),
    ErrorCode.STAGE_LOST: Words(
        "a part of the model went away while it answered",
        "ask again; `stagewire status` says whether the pipeline is whole",
    ),
    ErrorCode.PREFILL_FAILED: Words(
        "the prompt could not be computed", "ask again; if it stays so, the stage's log says why"
    ),
    ErrorCode.DECODE_FAILED: Words(
        "the answer could not be computed to its end", "ask again; if it stays so, the stage's log says why"
    ),
    ErrorCode.RESTORE_INCOMPLETE: Words("what was kept of the prompt could not be restored", "ask again"),
    ErrorCode.CLIENT_GONE: Words("the server had not heard of this client for long and gave it up", "ask again"),
    ErrorCode.UNREACHABLE: Words(
        "nobody answers", "start a cluster with `stagewire up`, or name one with --endpoint or STAGEWIRE_ENDPOINT"
    ),
    ErrorCode.PROTOCOL_ERROR: Words(
        "the other side sent something that is no message", "check that --endpoint is a broker's frontend"
    ),
    ErrorCode.PROTOCOL_VERSION: Words(
        "the other side is of another version", "install the same version of stagewire on both sides"
    ),
    ErrorCode.MESSAGE_TOO_LARGE: Words("a message is larger than the protocol allows", "send less at once"),
    ErrorCode.MODEL_FILE_INVALID: Words(
        "the model's file is missing or damaged",
        "`stagewire models` lists what can be fetched; a whole .gguf file will do too",
    ),
    ErrorCode.UNSUPPORTED_ARCHITECTURE: Words(
        "the model is of a family that cannot be run", "take a model of the Llama family (docs/models.md)"
    ),
    ErrorCode.UNSUPPORTED_TENSOR_TYPE: Words(
        "the model's file stores numbers in a way that cannot be read", "take a file of another quantization"
    ),
    ErrorCode.UNSUPPORTED_TOKENIZER: Words(
        "the model's vocabulary cannot be used for text", "send token ids, or take another model"
    ),
    ErrorCode.CLIENT_CLOSED: Words("this client was closed", "make another one"),
    ErrorCode.OTHER_PROCESS: Words("the client was made in another process", "make one in this process"),
    ErrorCode.INVALID_SETTING: Words("a setting is outside its limits", "`--help` of the command shows the options"),
    ErrorCode.INVALID_LAYER_RANGE: Words(
        "the layers do not make up the model", "`--help` of the command shows the options"
    ),
    ErrorCode.PORT_IN_USE: Words(
        "the port is taken",
        "end the process that holds it, or choose another port (of `stagewire up`: --frontend-port)",
    ),
    ErrorCode.STAGE_START_FAILED: Words(
        "a process did not start, or did not get ready", "its log says why; --log-dir keeps logs"
    ),
    ErrorCode.DESCRIPTOR_LIMIT: Words(
        "a process may not open as many files and connections as it needs",
        "`ulimit -n 4096` before it, in the same shell; `ulimit -Hn` says how high it may be",
    ),
    ErrorCode.INTERNAL: Words("something went wrong inside", "ask again; if it stays so, the process's log says more"),
}  # fmt: skip
