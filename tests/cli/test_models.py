"""`stagewire models`: what is known, whether it is there, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stagewire.cli.main import main
from stagewire.model.catalogue import CATALOGUE, DEFAULT_MODEL
from stagewire.model.shipped import TINY_MODEL, tiny_model_path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STAGEWIRE_CACHE", str(tmp_path))
    return tmp_path


def test_a_model_that_is_not_there_says_how_to_fetch_it(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert f"{DEFAULT_MODEL} (default)" in text
    assert f"stagewire models fetch {DEFAULT_MODEL}" in text
    assert main(["models", "--json"]) == 0
    listed = {model["name"]: model for model in json.loads(capsys.readouterr().out)["models"]}
    assert listed.keys() == {*CATALOGUE, TINY_MODEL}
    assert listed[TINY_MODEL]["path"] == str(tiny_model_path())
    assert listed[DEFAULT_MODEL]["path"] is None


def test_a_fetched_model_is_listed_with_its_path(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = CATALOGUE[DEFAULT_MODEL]
    path = cache / "models" / f"{entry.name}-{entry.sha256[:8]}.gguf"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(entry.size_bytes)  # a hole: the list looks at the size only
    assert main(["models", "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["models"][0]
    assert model["path"] == str(path)
    path.write_bytes(b"cut short")
    assert main(["models", "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["models"][0]
    assert model["path"] is None
