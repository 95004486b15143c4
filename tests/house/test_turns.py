"""The turns that workers take: tests beside each other, and a lone one between them."""

from __future__ import annotations

import threading
from pathlib import Path

from support.turns import turn


def test_a_lone_test_waits_for_those_that_run_and_keeps_others_from_starting(tmp_path: Path) -> None:
    """In the order of their coming: nobody overtakes the lone one."""
    order: list[str] = []

    def take(name: str, *, alone: bool) -> threading.Thread:
        def run() -> None:
            with turn(tmp_path, alone=alone):
                order.append(name)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(0.2)
        return thread

    with turn(tmp_path, alone=False):
        beside = take("beside", alone=False)
        assert not beside.is_alive()
        waiting = [take("lone", alone=True), take("later", alone=False)]
        assert order == ["beside"], "one runs, and one waits to be alone"
    for thread in waiting:
        thread.join(5)
    assert order == ["beside", "lone", "later"]
