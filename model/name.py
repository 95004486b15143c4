"""The name under which a model is served: short, on one line, and without its path."""

from __future__ import annotations

import re
from pathlib import Path

from stagewire.model.catalogue import CATALOGUE
from stagewire.model.gguf import GgufFile
from stagewire.wire.printable import printable

MAX_MODEL_NAME_CHARS = 64
_SUFFIX = ".gguf"
_DIGEST = re.compile(r"(sha256[-:_])?[0-9a-fA-F]{40,64}")
_NAMELESS = "model"


def model_name(given: str, gguf: GgufFile) -> str:
    """Returns the name of the model that somebody gave as `given`, a catalogue's name or a path.

    A path gives its file's name without the suffix, a symbolic link its own. Where that is a mere digest, as in the
    caches of other tools, the file's own `general.name` is taken. What cannot be printed becomes `_`.
    """
    if given in CATALOGUE:
        return CATALOGUE[given].name
    # The bytes of the name, read as UTF-8 whatever the locale says, so that it is the same under all of them.
    name = Path(given).name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    name = name[: -len(_SUFFIX)] if name.lower().endswith(_SUFFIX) else name
    own = gguf.metadata.get("general.name")
    if (not name or _DIGEST.fullmatch(name)) and isinstance(own, str):
        name = own
    return _short(name) or _NAMELESS


def _short(name: str) -> str:
    """The middle goes: names differ at their ends."""
    name = "".join("_" if printable(character) != character else character for character in name).strip()
    if len(name) <= MAX_MODEL_NAME_CHARS:
        return name
    half = (MAX_MODEL_NAME_CHARS - 3) // 2
    return f"{name[:half]}...{name[-half:]}"
