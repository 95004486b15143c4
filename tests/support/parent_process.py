"""A process of its own that makes clients and forks, as text: what its child does is the test's."""

from __future__ import annotations

import subprocess
import sys

NOBODY = "tcp://127.0.0.1:9"
PARENT = """
import asyncio, multiprocessing, os, signal, sys, threading, time, warnings
warnings.filterwarnings("ignore", "This process", DeprecationWarning)  # that it has threads and forks is the point
from stagewire import AsyncClient, Client, ErrorCode, RequestRefused, SamplingParams, StagewireError

client = Client({endpoint!r})
session = client.session("talk")
waiting = session.generate(prompt_token_ids=[1], max_tokens=1, sampling=SamplingParams())
async_client = AsyncClient({endpoint!r})

def child():
    signal.alarm({child_s})
{child}

def refused(call):
    try:
        call()
    except RequestRefused as error:
        assert error.code is ErrorCode.OTHER_PROCESS and not error.retryable, error
        assert "make one here" in error.detail
    else:
        raise AssertionError("nothing was raised")
"""
FORK = """
process_id = os.fork()
if process_id == 0:
    child()
    sys.exit(0)  # with all that the interpreter does at its end
_, status = os.waitpid(process_id, 0)
assert status == 0, status
"""
MULTIPROCESSING = """
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
assert process.exitcode == 0, process.exitcode
"""
UNHURT = """
assert {"stagewire-client"} <= {thread.name for thread in threading.enumerate()}
try:
    waiting.wait(0.1)
    raise AssertionError("nobody can have answered")
except TimeoutError:
    pass
waiting.close()
started = time.monotonic()
client.close()
asyncio.run(async_client.close())
assert time.monotonic() - started < 2
"""


def run(*parts: str, child: str, endpoint: str = NOBODY, child_s: int = 5) -> None:
    """Runs a parent with this child; neither may fail, or say a word on standard error.

    The child has `child_s` seconds.
    """
    parent = PARENT.format(
        endpoint=endpoint, child_s=child_s, child="\n".join("    " + line for line in child.strip().splitlines())
    )
    code = parent + "".join(parts)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=3 * child_s + 10,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
