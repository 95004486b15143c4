"""What the stage's core tells its loop to do; the loop performs these in order and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.stage.files.jobs import FileJob
from stagewire.stage.tail.link_instructions import CloseLink, Dial, SendLink
from stagewire.wire.codec import Envelope, Message
from stagewire.wire.errors import ErrorCode
from stagewire.wire.note import Note


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send to the broker."""

    message: Message


@dataclass(frozen=True, slots=True)
class SendNext:
    """Send on the hop to the next stage."""

    envelope: Envelope
    message: Message


@dataclass(frozen=True, slots=True)
class SendHead:
    """Send on the feed to the head."""

    envelope: Envelope
    message: Message


@dataclass(frozen=True, slots=True)
class ConnectRing:
    """Open fresh PUSH sockets for a new epoch, where there is an endpoint."""

    feed_endpoint: str | None
    next_endpoint: str | None


@dataclass(frozen=True, slots=True)
class CloseRing:
    """Close the PUSH sockets; what they still hold is of a dead epoch."""


@dataclass(frozen=True, slots=True)
class StartJob:
    """Have the file thread do this; `StageCore.handle_file` gets what becomes of it."""

    job: FileJob


@dataclass(frozen=True, slots=True)
class Exit:
    """The broker does not want this stage: end the process and say why."""

    code: ErrorCode
    detail: str


Instruction = (
    SendControl | SendNext | SendHead | ConnectRing | CloseRing | StartJob | Exit | Dial | CloseLink | SendLink | Note
)
