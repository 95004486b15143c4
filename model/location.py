"""Where the model file is that somebody names: a path, or what is close to one, and then what to give instead."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from stagewire.model.file_kind import refuse_irregular
from stagewire.wire.errors import ModelError

_SUFFIX = ".gguf"
_UNFINISHED = (".part", ".partial", ".download", ".crdownload", ".incomplete", ".aria2", ".tmp", "!qb")
_PIECE = re.compile(
    r"\.gguf[._-](split-?[a-z0-9]+|part-?\d+(of\d+)?|part-?[a-z]{1,2}|[a-z]{2}|\d{1,3})$", re.IGNORECASE
)
_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOST = re.compile(r"([a-z0-9-]+\.)+[a-z]{2,}(:\d+)?/(.+/.+|.+\.gguf)", re.IGNORECASE)
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
_MAX_SHOWN = 5


def locate(text: str) -> Path | None:
    """Returns the path of the regular file that `text` names, `~` expanded; None where it looks like no path at all.

    The path is looked at, not opened.

    Raises:
        ModelError: MODEL_FILE_INVALID, no model can be had there; the message says what is there, and what to do.
    """
    if not text or "\0" in text:
        raise ModelError(f"{text!r:.80} is no path; give the path of a {_SUFFIX} file")
    if _URL.match(text):
        raise ModelError(_of_url(text))
    path = expanded(text)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return _missing(text, path)
    except OSError as error:
        raise ModelError(f"{path} cannot be reached: {error.strerror}") from None
    if path.is_dir():
        raise ModelError(_of_folder(path))
    refuse_irregular(path, mode)
    _refuse_unreadable(path)
    _refuse_unfinished(path)
    return path


def expanded(text: str) -> Path:
    """The path with a leading `~` or `~user` expanded, where there is such a home; else as it is."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  # pathlib's raises where there is no home


def split_part(name: str) -> tuple[str, int, int] | None:
    """Stem, number and count of a file name as in `model-00001-of-00002.gguf`; None of another name."""
    match = _PART.fullmatch(name)
    return (match["stem"], int(match["part"]), int(match["count"])) if match else None


# --- what is there ---


def _refuse_unreadable(path: Path) -> None:
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise ModelError(f"{path} may not be read by this user; see its permissions with `ls -l`")


def _refuse_unfinished(path: Path) -> None:
    if path.name.lower().endswith(_UNFINISHED):
        raise ModelError(f"{path} has the name of an unfinished download; end it, or rename the file if it is whole")
    if path.with_name(path.name + ".aria2").exists():
        raise ModelError(f"{path} is an unfinished download, as {path.name}.aria2 beside it says; end it")
    if _PIECE.search(path.name):
        raise ModelError(
            f"{path} has the name of a piece of a file; join all pieces in order: `cat PIECE... > {_whole(path)}`"
        )


def _whole(path: Path) -> str:
    return path.name[: path.name.lower().rindex(_SUFFIX)] + _SUFFIX


def _of_folder(folder: Path) -> str:
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    except OSError as error:
        return f"{folder} is a folder that cannot be listed: {error.strerror}"
    models = [name for name in names if name.lower().endswith(_SUFFIX)]
    if models:
        return f"{folder} is a folder; give the path of a file in it: {_listed(folder / name for name in models)}"
    weights = [name for name in names if name.endswith((".safetensors", ".bin", ".pt", ".pth"))]
    if weights:
        return (
            f"{folder} is a folder with {weights[0]}, a model in another format; take a {_SUFFIX} file of the same "
            f"model, or make one with llama.cpp's convert_hf_to_gguf.py"
        )
    return f"{folder} is a folder without a {_SUFFIX} file; give the path of one"


# --- what is not there ---


def _missing(text: str, path: Path) -> Path | None:
    """None where `text` is a mere name.

    Raises:
        ModelError: it looks like a path, or like a repository of a model hub.
    """
    if path.is_symlink():
        raise ModelError(f"{path} is a symbolic link to {path.readlink()}, and there is no such file")
    near = _near(path)
    is_path = path.suffix.lower() == _SUFFIX or text.startswith(("/", ".", "~")) or text.endswith("/")
    if _HOST.match(text) and not Path(path.parts[0]).exists():
        raise ModelError(_of_url(f"https://{text}"))
    if not is_path and _REPOSITORY.fullmatch(text) and not path.parent.exists():
        raise ModelError(
            f"{text}: there is no such file. If it is a repository of a model hub: download one {_SUFFIX} file from "
            f"it, as with `hf download {text.partition(':')[0]} FILE{_SUFFIX} --local-dir .`, and give its path"
        )
    if is_path or len(path.parts) > 1 or near:
        raise ModelError(f"{text}: there is no such file{near or _missing_folder(path)}")
    return None


def _missing_folder(path: Path) -> str:
    gone = next((folder for folder in reversed(path.parents) if not folder.exists()), None)
    return f", nor a folder {gone}" if gone is not None else ""


def _near(path: Path) -> str:
    """What lies beside it: its parts, its unfinished download, or a name that is almost the same."""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir())
    except OSError:
        return ""
    stem = path.name[: -len(_SUFFIX)] if path.name.lower().endswith(_SUFFIX) else path.name
    parts = [name for name in names if (part := split_part(name)) is not None and part[0] == stem]
    if parts:
        merge = f"llama-gguf-split --merge {parts[0]} {path.name}"
        return f", but {len(parts)} parts of it; join them with llama.cpp's `{merge}`"
    unfinished = [path.name + end for end in _UNFINISHED if path.name + end in names]
    if unfinished:
        return f", but {unfinished[0]}, its unfinished download; end that"
    models = [name for name in names if name.lower().endswith(_SUFFIX)]
    same = [name for name in models if name.lower() in (path.name.lower(), path.name.lower() + _SUFFIX)]
    close = same or (difflib.get_close_matches(path.name, models, _MAX_SHOWN) if path.suffix.lower() == _SUFFIX else [])
    return f"; did you mean {_listed(path.parent / name for name in close)}?" if close else ""


def _listed(paths: Iterable[Path]) -> str:
    shown = [str(path) for path in paths]
    return ", ".join(shown[:_MAX_SHOWN]) + (f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else "")


def _of_url(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme.lower() == "file":
        return f"{text:.200}: give the path itself: /{rest.partition('/')[2]:.200}"
    if scheme.lower() in ("http", "https"):
        return f"{text:.200} is a URL; fetch the file first, as with `curl -fLO '{text:.200}'`, and give its path"
    return f"{text:.200} is an address; fetch the {_SUFFIX} file first, and give its path"
