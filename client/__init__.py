"""The client SDK: `Client` and `AsyncClient`; it imports no model, no torch, and text support only when it is used."""

from typing import TYPE_CHECKING

from stagewire.client.aio import AsyncClient, AsyncSession
from stagewire.client.async_generation import AsyncGeneration
from stagewire.client.client import Client
from stagewire.client.generation import Generation
from stagewire.client.prompt import GenerateOptions
from stagewire.client.result import RequestFailed, Result, TimeParts, Timings, TokenEvent, TopLogprob
from stagewire.client.session import Session
from stagewire.client.settings import ClientSettings
from stagewire.wire.cache_reports import Caches, StageCache
from stagewire.wire.errors import (
    ErrorCode,
    ProtocolError,
    RequestRefused,
    SettingsError,
    StagewireError,
)
from stagewire.wire.frontend import ModelInfo
from stagewire.wire.request import CacheStatistics, FinishReason, SnapshotRequest, StageTiming, Usage
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.snapshots import SnapshotInfo, Snapshots
from stagewire.wire.status import Status

if TYPE_CHECKING:
    from stagewire.client.text.message import ChatMessage

__all__ = [
    "AsyncClient",
    "AsyncGeneration",
    "AsyncSession",
    "CacheStatistics",
    "Caches",
    "ChatMessage",
    "Client",
    "ClientSettings",
    "ErrorCode",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "ModelInfo",
    "ProtocolError",
    "RequestFailed",
    "RequestRefused",
    "Result",
    "SamplingParams",
    "Session",
    "SettingsError",
    "SnapshotInfo",
    "SnapshotRequest",
    "Snapshots",
    "StageCache",
    "StageTiming",
    "StagewireError",
    "Status",
    "TimeParts",
    "Timings",
    "TokenEvent",
    "TopLogprob",
    "Usage",
]


def __getattr__(name: str) -> object:
    # Needs the extra `text`, which whoever speaks in token ids does without.
    if name == "ChatMessage":
        from stagewire.client.text.message import ChatMessage  # noqa: PLC0415

        return ChatMessage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
