"""A short form of a long table of cases: some every day, all of them with `make test-slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def short(cases: Iterable[Any], keep: int, width: int = 1) -> list[Any]:
    """The first `keep` cases as they are, the others marked as slow; a case has values for `width` arguments."""
    slow = pytest.mark.slow
    return [
        case if number < keep else pytest.param(*(case if width > 1 else (case,)), marks=slow)
        for number, case in enumerate(cases)
    ]
