"""The files that a decode step enters, traced in a real one: what a reader must read to follow it."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from support.running_broker import FAST, RunningBroker

from stagewire.client import Client, SamplingParams
from stagewire.stage.settings import StageSettings
from stagewire.stage.worker import run_stage

ROOT = Path(__file__).resolve().parents[2]
STAGES = ((0, 17), (17, 30))
NUM_STEPS = 24
MAX_FILES, MAX_LINES = 30, 5140
READY_S = 30.0


class Tracer:
    """Counts calls by thread, file and function while `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls: Counter[tuple[str, str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if self.is_on and event == "call":
            code = frame.f_code
            self.calls[threading.current_thread().name, code.co_filename, code.co_name] += 1

    def entered_in_every_step(self) -> set[Path]:
        """Files of ours in which some function was called as often as there were steps, or more often."""
        often = {
            name
            for (thread, name, _), count in self.calls.items()
            if thread.startswith("stage-") and count >= NUM_STEPS
        }
        paths = {Path(name).resolve() for name in often if not name.startswith("<")}
        return {path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT) and ".venv" not in path.parts}


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    tracer = Tracer()
    threading.setprofile(tracer)
    yield tracer
    threading.setprofile(None)
    sys.setprofile(None)


@pytest.mark.processes
@pytest.mark.alone
def test_an_ordinary_decode_step_enters_few_files(tracer: Tracer) -> None:
    """Over both stages, from the loop to the sampler to the wire and back, counting and timing included."""
    broker, stop = RunningBroker(FAST), threading.Event()
    ready = [threading.Event() for _ in STAGES]
    threads = [
        threading.Thread(
            target=run_stage,
            name=f"stage-{start}",
            args=(
                StageSettings(
                    model="smollm2-135m",
                    control_endpoint=broker.endpoints.control,
                    layer_start=start,
                    layer_end=end,
                    kv_tokens=1024,
                ),
                event.set,
                stop,
            ),
        )
        for (start, end), event in zip(STAGES, ready, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        assert all(event.wait(READY_S) for event in ready)
        with Client(broker.endpoints.frontend) as client:
            greedy = SamplingParams(temperature=0)
            with client.session().generate("Once upon", sampling=greedy, max_tokens=NUM_STEPS + 16) as generation:
                for number, _token in enumerate(generation):
                    tracer.is_on = 8 <= number < NUM_STEPS + 12
    finally:
        stop.set()
        for thread in threads:
            thread.join(READY_S)
        broker.stop()
    entered = tracer.entered_in_every_step()
    lines = {path: len((ROOT / path).read_text("utf-8").splitlines()) for path in entered}
    told = "\n".join(f"{count:4} {path}" for path, count in sorted(lines.items()))
    assert len(entered) <= MAX_FILES and sum(lines.values()) <= MAX_LINES, f"{len(lines)} {sum(lines.values())}\n{told}"
    page = (ROOT / "docs/request.md").read_text("utf-8").partition("## One step at one stage")[2]
    assert {str(path) for path in entered} == set(re.findall(r"^- `([^`]+)`", page, re.MULTILINE)), told
