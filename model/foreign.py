"""What a file is that is no model: by its first bytes or its metadata, and what to do with it. It opens no file."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping

Scalar = int | float | bool | str

HEAD_BYTES = 512
"""So much of a file's beginning is enough to recognize it."""

_CONVERT = "take a .gguf file of the same model, or make one with llama.cpp's convert_hf_to_gguf.py"
_FETCH_AGAIN = "fetch the file itself"
_PICKLE = f"a PyTorch checkpoint (a pickle, which may run code and is never opened here); {_CONVERT}"
_UNPACK = "unpack it, and give the .gguf file that is in it"

# The first row that fits says it. HTML and text come last: their beginnings are the least certain.
_BEGINNINGS: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (lambda head: not head.strip(b"\0"), f"zero bytes: room that a download never filled; {_FETCH_AGAIN}"),
    (lambda head: head.startswith(b"PK\3\4") and b"/data.pkl" in head, _PICKLE),
    (lambda head: head.startswith(b"PK\3\4"), f"a zip archive or Python wheel; {_UNPACK}"),
    (lambda head: re.match(rb"\x80[\2-\5][}c(\]\x8a\x95]", head) is not None, _PICKLE),
    (lambda head: head[8:9] == b"{" and 0 < int.from_bytes(head[:8], "little") < 1 << 27, f"safetensors; {_CONVERT}"),
    (
        lambda head: head.startswith(b"version https://git-lfs"),
        f"a pointer of Git LFS, which stands for the file; {_FETCH_AGAIN}, as with `git lfs pull`",
    ),
    (
        lambda head: head[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"),
        "a model in a format of llama.cpp before GGUF; take a newer file of the same model",
    ),
    (
        lambda head: head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"(\xb5/\xfd", b"7z\xbc\xaf")),
        f"compressed; {_UNPACK}",
    ),
    (lambda head: head[257:262] == b"ustar", f"a tar archive; {_UNPACK}"),
    (lambda head: head.startswith(b"MZqFpD"), f"a llamafile, which is a program; {_UNPACK}"),
    (lambda head: head.startswith(b"\x7fELF"), "a program"),
    (
        lambda head: head.startswith((b"\x89HDF", b"\x93NUMPY")) or head[4:8] == b"TFL3",
        f"of another framework; {_CONVERT}",
    ),
    (
        lambda head: re.match(rb"(\xef\xbb\xbf)?\s*<(!doctype|html|head|\?xml|!--)", head, re.IGNORECASE) is not None,
        f"an HTML page, as a server sends it for an error or a login; {_FETCH_AGAIN}, not the page about it",
    ),
    (lambda head: head.lstrip()[:1] == b"{" and _is_text(head), f"JSON; {_FETCH_AGAIN} that holds the weights"),
    (lambda head: head != b"" and _is_text(head), f"text; {_FETCH_AGAIN} that holds the weights"),
)

_TYPES: Mapping[str, str] = {
    "adapter": "an adapter (LoRA); merge it into its base model with llama.cpp's llama-export-lora, and give that",
    "mmproj": "the part of a model that sees or hears (mmproj); give the language model, which is another file",
    "imatrix": "an importance matrix, with which models are quantized; give the model itself",
    "controlvector": "a control vector; give the model itself",
    "vocab": "a vocabulary without weights; give the model itself",
}
_ARCHITECTURES = {"clip": "mmproj", "controlvector": "controlvector", "imatrix": "imatrix"}


def describe_head(head: bytes) -> str:
    """Says what a file that is not GGUF is, by its first bytes, and what to do next; empty if nobody knows."""
    return next((description for fits, description in _BEGINNINGS if fits(head)), "")


def describe_metadata(metadata: Mapping[str, Scalar]) -> str:
    """Says what a GGUF file is that holds no language model, and what to do next; empty if it may hold one."""
    kind = metadata.get("general.type", "model")
    if "adapter.type" in metadata:
        kind = "adapter"
    kind = _ARCHITECTURES.get(str(metadata.get("general.architecture")), str(kind))
    return _TYPES.get(kind, "")


def _is_text(head: bytes) -> bool:
    """UTF-8, perhaps with its last character cut, without the control characters that text has not."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return not re.search(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]", text)
