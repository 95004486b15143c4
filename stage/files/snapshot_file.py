"""An exported snapshot in files: one part for each stage, as safetensors, and a manifest that names them all.

A part holds tokens and blocks; only the manifest makes parts a snapshot, so it is written last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from stagewire.wire.errors import ErrorCode, StagewireError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MAX_FILE_NAME_CHARS = 64
_FORMAT = "stagewire-snapshot-1"
_DIGEST_BYTES = 32
_DIGEST_CHARS = 16
PART_SUFFIX = ".safetensors"
MAX_MANIFEST_BYTES = 4 << 20
_DIGEST = re.compile(rf"[0-9a-f]{{{2 * _DIGEST_BYTES}}}")
_MAX_STAGES = 1024


class SnapshotFileError(StagewireError):
    """A snapshot cannot be written, or what was read is damaged, foreign, or not there; nothing of it is used."""

    default_code = ErrorCode.SNAPSHOT_FILE


@dataclass(frozen=True, slots=True)
class Manifest:
    """`digests` are those of the parts, by stage; `client_id` is who made the snapshot."""

    client_id: str
    model: str
    block_size: int
    token_ids: tuple[int, ...]
    digests: tuple[str, ...]

    @property
    def num_stages(self) -> int:
        return len(self.digests)


def is_file_name(name: str) -> bool:
    """Whether a snapshot may have this name in the directory: letters, digits, and `.`, `_`, `-` within."""
    return len(name) <= MAX_FILE_NAME_CHARS and is_inside(name)


def is_inside(name: str) -> bool:
    """Whether a file of this name lies in the directory itself, in plain sight."""
    return _NAME.fullmatch(name) is not None


def part_prefix(name: str, stage_index: int, num_stages: int) -> str:
    """How the names of one stage's files begin."""
    return f"{name}.stage-{stage_index}-of-{num_stages}"


def part_name(prefix: str, digest: str) -> str:
    """Of a part with this digest: another export of the same name has other parts, and leaves these alone."""
    return f"{prefix}.{digest[:_DIGEST_CHARS]}{PART_SUFFIX}"


def manifest_name(name: str) -> str:
    return f"{name}.snapshot.json"


def digest_of(data: bytes) -> str:
    return blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def encode_part(numerics: bytes, token_bytes: bytes, contents: Sequence[bytes]) -> bytes:
    """The bytes of a part, always the same: int32 `token_ids` [T], uint8 `blocks` [blocks, bytes of one]."""
    blocks = np.frombuffer(b"".join(contents), np.uint8).reshape(len(contents), -1)
    tensors = {"token_ids": np.frombuffer(token_bytes, "<i4"), "blocks": blocks}
    # One entry: the library writes several in any order, and the same snapshot would be another file each time.
    return save(tensors, {"numerics": numerics.hex()})


def decode_part(data: bytes, digest: str, numerics: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """Tokens and the contents of the blocks.

    Raises:
        SnapshotFileError: these are not the bytes that were written, or they are of another arithmetic.
    """
    if digest_of(data) != digest:
        raise SnapshotFileError("a part is damaged, or belongs to another export")
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        tensors = load(data)
        if header["__metadata__"]["numerics"] != numerics.hex():
            raise SnapshotFileError("it was made by another model, precision or cut; give the prompt instead")
        return tensors["token_ids"].tobytes(), tuple(block.tobytes() for block in tensors["blocks"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise SnapshotFileError(f"a part cannot be read: {type(error).__name__}") from error


def encode_manifest(manifest: Manifest) -> bytes:
    fields = {"format": _FORMAT, **asdict(manifest), "token_ids": np.array(manifest.token_ids, "<i4").tobytes().hex()}
    return json.dumps(fields).encode()


def decode_manifest(data: bytes) -> Manifest:
    """What `encode_manifest` was given.

    Raises:
        SnapshotFileError: it is not that.
    """
    try:
        fields = json.loads(data)
        if fields.pop("format") != _FORMAT:
            raise SnapshotFileError("its manifest is of another version")
        token_ids = np.frombuffer(bytes.fromhex(fields.pop("token_ids")), "<i4").tolist()
        manifest = Manifest(**fields | {"token_ids": tuple(token_ids), "digests": tuple(fields["digests"])})
        is_sound = all(isinstance(one, str) for one in (manifest.client_id, manifest.model))
        is_sound = is_sound and len(manifest.digests) <= _MAX_STAGES
        is_sound = is_sound and all(_DIGEST.fullmatch(one) for one in manifest.digests)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SnapshotFileError(f"its manifest cannot be read: {type(error).__name__}") from error
    if not is_sound or not manifest.token_ids:
        raise SnapshotFileError("its manifest does not hold what it should")
    return manifest
