"""A client in a process that was forked from its own: it says so at once, hurts nobody, and another one works."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from support.parent_process import FORK, MULTIPROCESSING, NOBODY, UNHURT, run
from support.short_form import short

from stagewire.client import Client

pytestmark = pytest.mark.processes

COLLECT = """
import gc
global client, session, waiting, async_client
del client, session, waiting, async_client
gc.collect()
"""
CALLS = {
    "status": "refused(client.status)",
    "models": "refused(client.models)",
    "connect": "refused(client.connect)",
    "a card": "refused(client.card)",
    "clearing caches": "refused(client.clear_caches)",
    "freeing a snapshot": "refused(lambda: client.free_snapshot('rules'))",
    "a new session": "refused(lambda: client.session().generate('Hello'))",
    "an inherited session": "refused(lambda: session.generate(prompt_token_ids=[1]))",
    "a snapshot": "refused(lambda: session.snapshot('rules', prompt_token_ids=[1]))",
    "iterating": "refused(lambda: next(waiting))",
    "waiting": "refused(waiting.wait)\nrefused(lambda: waiting.wait(5))",
    "cancelling": "refused(waiting.cancel)\nrefused(waiting.pause)\nrefused(waiting.resume)",
    "asyncio": """
async def ask():
    async with async_client as inherited:
        await inherited.session().generate(prompt_token_ids=[1])
refused(lambda: asyncio.run(ask()))
refused(lambda: asyncio.run(async_client.status()))
refused(lambda: asyncio.run(async_client.session().generate("Hello")))
""",
}


@pytest.mark.parametrize("call", short(CALLS, keep=3))
def test_an_inherited_client_says_at_once_that_it_is_another_processes(call: str) -> None:
    """Whatever is asked of it, with a typed error that is not to be retried; the parent's request goes on waiting."""
    run(FORK, UNHURT, child=CALLS[call])


def test_a_process_of_multiprocessing_is_no_different() -> None:
    """It is forked, too, and ends in another way."""
    run(MULTIPROCESSING, UNHURT, child="\n".join(CALLS.values()))


@pytest.mark.parametrize("fork", short([FORK, MULTIPROCESSING], keep=1), ids=["os.fork", "multiprocessing"])
@pytest.mark.parametrize(
    "end",
    [
        "client.close()",
        "waiting.close()",
        "with client:\n    with waiting:\n        pass",
        "asyncio.run(async_client.close())",
        COLLECT,
        "pass",
    ],
    ids=["close", "close a generation", "with", "asyncio", "collect", "exit"],
)
def test_a_child_ends_an_inherited_client_without_a_word(end: str, fork: str) -> None:
    """It waits for nothing, warns of nothing, and takes nothing from its parent."""
    run(fork, UNHURT, child=end)


@pytest.mark.slow
def test_a_fork_in_the_middle_of_the_threads_work_is_no_different() -> None:
    """While the parent's lock is held by somebody whom the child does not have."""
    held = """
locked = threading.Event()
def hold():
    with client.loop._lock:
        locked.set()
        time.sleep(1)
threading.Thread(target=hold).start()
locked.wait()
"""
    run(
        held,
        FORK,
        UNHURT,
        child="refused(client.status)\nrefused(lambda: next(waiting))\nwaiting.close()\nclient.close()",
    )


@pytest.mark.parametrize(
    "make", [lambda client: client, lambda client: client.session(), lambda client: [client.generate]]
)
def test_a_client_cannot_be_sent_to_another_process(make: Callable[[Client], object]) -> None:
    """As an argument of a process that is not forked, say; it says why."""
    with Client(NOBODY) as client, pytest.raises(TypeError, match="belongs to the process that made it"):
        pickle.dumps(make(client))


@pytest.mark.slow
def test_a_child_that_is_killed_takes_nothing_along() -> None:
    """Its parent's requests, and those of a sister, go on."""
    killed = """
children = []
for _ in range(2):
    process_id = os.fork()
    if process_id == 0:
        time.sleep(30)
        os._exit(1)
    children.append(process_id)
for process_id in children:
    os.kill(process_id, signal.SIGKILL)
    os.waitpid(process_id, 0)
"""
    run(killed, UNHURT, child="pass")
