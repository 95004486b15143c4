"""Models that are split over several files: a part is recognized and named; nothing here joins or loads parts."""

from __future__ import annotations

from stagewire.model.gguf import GgufFile
from stagewire.model.location import split_part
from stagewire.wire.errors import ErrorCode, ModelError

_MAGIC = b"GGUF"
_MAX_ALIGNMENT = 64  # what writers pad a file's end to


def refuse_parts(gguf: GgufFile) -> None:
    """Checks that the file is one whole model, as far as files tell of themselves.

    Raises:
        ModelError: UNSUPPORTED_ARCHITECTURE, it is one part of a split model; MODEL_FILE_INVALID, it holds two files.
    """
    part = _part_of(gguf)
    joined = _follows(gguf)
    if joined:
        raise ModelError(
            f"{gguf.path}: two GGUF files joined, the second at byte {joined}; the parts of a split model cannot be "
            "joined with cat: use llama.cpp's `llama-gguf-split --merge FIRST_PART WHOLE_FILE`"
        )
    if part is not None:
        number, count = part
        raise ModelError(
            f"{gguf.path}: part {number} of {count} of a split model, which is not supported; make one file of all "
            f"parts with llama.cpp's `llama-gguf-split --merge FIRST_PART WHOLE_FILE`{_absent(gguf, count)}",
            ErrorCode.UNSUPPORTED_ARCHITECTURE,
        )


def _part_of(gguf: GgufFile) -> tuple[int, int] | None:
    """Its number, from 1, and how many there are; None of a whole file."""
    count, number = gguf.metadata.get("split.count"), gguf.metadata.get("split.no")
    if type(count) is int:
        return (number + 1 if type(number) is int else 1, count) if count > 1 else None
    named = split_part(gguf.path.name)
    return named[1:] if named is not None and named[2] > 1 and not _has_all_layers(gguf) else None


def _has_all_layers(gguf: GgufFile) -> bool:
    num_layers = gguf.metadata.get(f"{gguf.metadata.get('general.architecture')}.block_count")
    if type(num_layers) is not int:
        return False
    held = {name.split(".")[1] for name in gguf.tensors if name.startswith("blk.")}
    return len(held) >= num_layers


def _absent(gguf: GgufFile, count: int) -> str:
    """The parts that do not lie beside this one; empty if all do, or nobody knows."""
    named = split_part(gguf.path.name)
    if named is None or named[2] != count:
        return ""
    names = [f"{named[0]}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    absent = [name for name in names if not gguf.path.with_name(name).exists()]
    return f"; not here are {', '.join(absent[:3])}{', ...' if len(absent) > 3 else ''}" if absent else ""


def _follows(gguf: GgufFile) -> int:
    """Where a second file begins behind the last tensor; 0 if none does."""
    for offset in range(gguf.data_end, min(gguf.data_end + _MAX_ALIGNMENT, gguf.num_bytes)):
        if gguf.read_bytes(offset, len(_MAGIC)) == _MAGIC:
            return offset
    return 0
