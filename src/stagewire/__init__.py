"""Stagewire serves one language model that is split by layers. The names below are its public API.

They are imported when they are first used, so that `import stagewire` costs nothing and needs no extra.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagewire.client import (
        AsyncClient,
        AsyncGeneration,
        AsyncSession,
        ChatMessage,
        Client,
        ClientSettings,
        ErrorCode,
        FinishReason,
        Generation,
        ModelInfo,
        RequestFailed,
        RequestRefused,
        Result,
        SamplingParams,
        Session,
        SnapshotRequest,
        StagewireError,
        TimeParts,
        Timings,
        TokenEvent,
        TopLogprob,
        Usage,
    )
    from stagewire.cluster.local import LocalCluster

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncGeneration",
    "AsyncSession",
    "ChatMessage",
    "Client",
    "ClientSettings",
    "ErrorCode",
    "FinishReason",
    "Generation",
    "LocalCluster",
    "ModelInfo",
    "RequestFailed",
    "RequestRefused",
    "Result",
    "SamplingParams",
    "Session",
    "SnapshotRequest",
    "StagewireError",
    "TimeParts",
    "Timings",
    "TokenEvent",
    "TopLogprob",
    "Usage",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "stagewire.cluster.local" if name == "LocalCluster" else "stagewire.client"
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
