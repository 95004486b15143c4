"""The client SDK: `Client` and `AsyncClient`; it imports no model, no torch, and text support only when it is used."""

from stagewire.client.aio import AsyncClient, AsyncGeneration, AsyncSession
from stagewire.client.client import Client, Session
from stagewire.client.generation import Generation
from stagewire.client.result import Result, Timings, TokenEvent
from stagewire.client.settings import ClientSettings
from stagewire.wire.errors import (
    ErrorCode,
    ProtocolError,
    RequestFailed,
    RequestRefused,
    SettingsError,
    StagewireError,
)
from stagewire.wire.request import FinishReason, StageTiming, Usage
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.status import Status

__all__ = [
    "AsyncClient",
    "AsyncGeneration",
    "AsyncSession",
    "Client",
    "ClientSettings",
    "ErrorCode",
    "FinishReason",
    "Generation",
    "ProtocolError",
    "RequestFailed",
    "RequestRefused",
    "Result",
    "SamplingParams",
    "Session",
    "SettingsError",
    "StageTiming",
    "StagewireError",
    "Status",
    "Timings",
    "TokenEvent",
    "Usage",
]
