"""What a caller sees of snapshots: how long one is, why there is none, and an import."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.answers import run
from support.client_peers import Broker, dispatched

from stagewire.client import (
    AsyncClient,
    Client,
    ClientSettings,
    ErrorCode,
    FinishReason,
    RequestFailed,
    SnapshotRequest,
    StagewireError,
)
from stagewire.wire.codec import Message
from stagewire.wire.frontend import Ended, Generate
from stagewire.wire.request import Ending, Usage
from stagewire.wire.snapshots import AskSnapshots, SnapshotAction, SnapshotInfo, SnapshotOrder, Snapshots

# --- snapshots ------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.processes


def ended(num_kept: int, code: ErrorCode | None = None) -> Callable[[Generate], list[Message]]:
    """As `on_generate`: whatever is asked for has ended, with so many tokens kept."""
    reason = FinishReason.FAILED if code else FinishReason.LENGTH
    ending = Ending(reason, None, Usage(3, 0), code=code, kept_tokens=num_kept)
    return lambda generate: [*dispatched()(generate), Ended(generate.request_id, ending)]


def test_a_snapshot_says_how_long_it_is_or_why_there_is_none(broker: Broker, settings: ClientSettings) -> None:
    """A request for no token; sync and asyncio alike."""
    with Client(settings=settings) as client:
        broker.on_generate = ended(3)
        assert client.session().snapshot("rules", prompt_token_ids=[1, 2, 3]) == 3
        asked = broker.expect(Generate)
        assert (asked.snapshot, asked.max_tokens) == (SnapshotRequest("rules"), 0)
        broker.on_generate = ended(0)
        with pytest.raises(RequestFailed, match="not complete"):
            client.session().snapshot("rules", prompt_token_ids=[1, 2, 3])
        broker.on_generate = ended(0, ErrorCode.SNAPSHOT_LIMIT)
        with pytest.raises(RequestFailed) as failed:
            client.session().snapshot("rules", prompt_token_ids=[1, 2, 3])
        assert failed.value.code is ErrorCode.SNAPSHOT_LIMIT

    async def story(client: AsyncClient) -> None:
        broker.on_generate = ended(3)
        assert await client.session().snapshot("rules", prompt_token_ids=[1, 2, 3]) == 3

    run(settings, story)


def test_an_order_that_is_not_carried_out_raises_with_the_heads_reason(
    broker: Broker, settings: ClientSettings
) -> None:
    """Sync and asyncio alike; what is there is told."""
    info = SnapshotInfo("rules", 3, 1, True, "1.1", "c", 1)

    def answer(asked: AskSnapshots) -> Snapshots:
        is_known = asked.order.name in ("", "rules")
        code = None if is_known else ErrorCode.SNAPSHOT_NOT_FOUND
        return Snapshots(asked.order, (info,), (), code, "" if is_known else "no such snapshot")

    broker.on_snapshots = answer
    with Client(settings=settings) as client:
        assert client.snapshot_info("rules") == info
        assert client.snapshot_info("other") is None
        assert client.export_snapshot("rules").order == SnapshotOrder(SnapshotAction.EXPORT, "rules", "rules")
        for order in (client.export_snapshot, client.rename_snapshot):
            with pytest.raises(StagewireError, match="no such snapshot") as failed:
                order("other", "rules")
            assert failed.value.code is ErrorCode.SNAPSHOT_NOT_FOUND

    async def story(client: AsyncClient) -> None:
        assert await client.snapshot_info("rules") == info
        assert (await client.rename_snapshot("rules", "b")).items == (info,)
        with pytest.raises(StagewireError, match="no such snapshot"):
            await client.export_snapshot("other")

    run(settings, story)


def test_an_import_is_a_request_without_a_prompt(broker: Broker, settings: ClientSettings) -> None:
    """Its tokens are those of the file."""
    with Client(settings=settings) as client:
        broker.on_generate = ended(40)
        assert client.session().import_snapshot("rules", "rules-v1") == 40
        asked = broker.expect(Generate)
        assert (asked.snapshot, asked.max_tokens) == (SnapshotRequest("rules", file="rules-v1"), 0)
        assert len(asked.prompt_token_ids) == 0
        broker.on_generate = ended(0, ErrorCode.SNAPSHOT_FILE)
        with pytest.raises(RequestFailed) as failed:
            client.session().import_snapshot("rules", "rules-v1")
        assert failed.value.code is ErrorCode.SNAPSHOT_FILE
        broker.on_generate = ended(0)
        client.session().generate(prompt_token_ids=[1], max_tokens=0, restore="rules").wait()
        while broker.expect(Generate).restore != "rules":
            pass

    async def story(client: AsyncClient) -> None:
        broker.on_generate = ended(40)
        assert await client.session().import_snapshot("rules", "rules-v1") == 40

    run(settings, story)
