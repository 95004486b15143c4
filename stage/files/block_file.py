"""A KV block as bytes of a file: what it belongs to, its tokens, its content, and a checksum over all of it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from stagewire.stage.kv.prefix_index import chain_hash
from stagewire.wire.errors import ModelError

_MAGIC = b"SWKV1\n"
_HEADER = struct.Struct("<6s16s16s16sIHQ")  # magic, numerics, chain before, chain, depth, token bytes, content bytes
_CHECKSUM_BYTES = 32
_HEX = 32
_NAME = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}-[0-9a-f]{32}\.kv")


@dataclass(frozen=True, slots=True)
class BlockFile:
    """A file as the directory lists it. `key` is arithmetic and chain hash, `parent` the key of the block before."""

    name: str
    written_ns: int
    num_bytes: int

    @property
    def key(self) -> str:
        return self.name[:_HEX] + self.name[2 * _HEX + 1 : 3 * _HEX + 2]

    @property
    def parent(self) -> str:
        return self.name[: 2 * _HEX + 1]


def is_block_name(name: str) -> bool:
    """Whether a file of this name is one of ours."""
    return _NAME.fullmatch(name) is not None


def newest_chains(files: Iterable[BlockFile]) -> list[BlockFile]:
    """All files, the chains written last first, and each block behind the one before it.

    So any beginning of the list is of use, and any end of it may be deleted.
    """
    by_key = {file.key: file for file in files}
    ordered: dict[str, BlockFile] = {}
    for file in sorted(by_key.values(), key=lambda file: (-file.written_ns, file.name)):
        chain: list[BlockFile] = []
        link: BlockFile | None = file
        while link is not None and link.key not in ordered:
            ordered[link.key] = link  # marked now, put into its place below
            chain.append(link)
            link = by_key.get(link.parent)
        for one in reversed(chain):
            ordered[one.key] = ordered.pop(one.key)
    return list(ordered.values())


def block_name(numerics: bytes, before: bytes, chain: bytes) -> str:
    """The file of the block of this chain hash, behind the one with that before it."""
    return f"{numerics.hex()}-{before.hex()}-{chain.hex()}.kv"


class BlockFileError(ModelError):
    """A file is damaged, cut off, or not what its name says; nothing of it is used."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """`before` is the chain hash through the block before; `content` is as the operators gave it."""

    numerics: bytes
    before: bytes
    chain: bytes
    depth: int
    token_bytes: bytes
    content: bytes

    @property
    def name(self) -> str:
        """The file's name: one key, one file, whoever writes it; it tells which block comes before."""
        return block_name(self.numerics, self.before, self.chain)


def encode_block(block: StoredBlock) -> bytes:
    """The file's bytes."""
    sizes = (block.depth, len(block.token_bytes), len(block.content))
    header = _HEADER.pack(_MAGIC, block.numerics, block.before, block.chain, *sizes)
    body = header + block.token_bytes + block.content
    return body + _checksum(body)


def decode_block(data: bytes, name: str) -> StoredBlock:
    """The block in a file of this name.

    Raises:
        BlockFileError: anything about it is not as it was written.
    """
    if len(data) < _HEADER.size + _CHECKSUM_BYTES or data[-_CHECKSUM_BYTES:] != _checksum(data[:-_CHECKSUM_BYTES]):
        raise BlockFileError(f"{name}: damaged or cut off")
    magic, numerics, before, chain, depth, num_token_bytes, num_content_bytes = _HEADER.unpack_from(data)
    content_at = _HEADER.size + num_token_bytes
    if magic != _MAGIC or content_at + num_content_bytes + _CHECKSUM_BYTES != len(data):
        raise BlockFileError(f"{name}: not a KV block of this version")
    block = StoredBlock(
        numerics, before, chain, depth, data[_HEADER.size : content_at], data[content_at:-_CHECKSUM_BYTES]
    )
    if block.name != name or chain_hash(before, block.token_bytes) != chain:
        raise BlockFileError(f"{name}: holds another block")
    return block


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=_CHECKSUM_BYTES).digest()
