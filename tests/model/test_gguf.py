"""GGUF files: tensors are read as ggml reads them, nothing else is touched, and damage is named."""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import gguf as ggml
import numpy as np
import psutil
import pytest
from gguf.quants import _type_traits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.model_files import TOKENS, file_bytes, key_value, small_tensors, tensor_entry, text, write_model

from stagewire.model.gguf import GgufFile
from stagewire.model.gguf_types import TENSOR_TYPES
from stagewire.wire.errors import ErrorCode, ModelError

SUPPORTED = {type_id: kind for type_id, kind in TENSOR_TYPES.items() if kind.supported}
ZEROS = bytes(1 << 12)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GgufFile]:
    with GgufFile.open(write_model(tmp_path_factory.mktemp("gguf") / "small.gguf")) as opened:
        yield opened


def open_bytes(folder: Path, data: bytes) -> GgufFile:
    path = folder / "made.gguf"
    path.write_bytes(data)
    return GgufFile.open(path)


# What is in a file.


def test_scalars_and_arrays_are_read_apart(small: GgufFile) -> None:
    assert small.metadata["general.architecture"] == "llama"
    assert small.metadata["llama.block_count"] == 2
    assert small.metadata["tokenizer.ggml.add_bos_token"] is False
    assert small.metadata["llama.rope.freq_base"] == 10000.0
    assert "tokenizer.ggml.tokens" not in small.metadata
    assert small.array("tokenizer.ggml.tokens") == TOKENS
    assert small.array("tokenizer.ggml.token_type") == [3] * 3 + [1] * (len(TOKENS) - 3)
    with pytest.raises(ModelError, match=r"no array 'general\.architecture'"):
        small.array("general.architecture")


def test_shapes_are_in_numpy_order_and_offsets_count_from_the_start_of_the_file(small: GgufFile) -> None:
    reader = ggml.GGUFReader(small.path)
    assert list(small.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        info = small.tensors[tensor.name]
        assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert info.type_name == tensor.tensor_type.name
        assert (info.offset, info.num_bytes) == (tensor.data_offset, tensor.n_bytes)


def test_the_default_model_is_read_as_ggmls_own_reader_reads_it(gguf_file: GgufFile) -> None:
    reader = ggml.GGUFReader(gguf_file.path)
    assert len(gguf_file.tensors) == 272
    for tensor in [*reader.tensors[1:10], reader.tensors[-1]]:
        expected = ggml.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(gguf_file.dequantize(tensor.name), expected)
    embedding = reader.tensors[0]
    rows = gguf_file.dequantize("token_embd.weight", 1000, 1003)
    np.testing.assert_array_equal(rows, ggml.dequantize(embedding.data[1000:1003], embedding.tensor_type))


def test_the_table_of_types_is_ggmls() -> None:
    sizes = {kind.value: (kind.name, *ggml.GGML_QUANT_SIZES[kind]) for kind in ggml.GGMLQuantizationType}
    assert {i: (kind.name, kind.block_size, kind.block_bytes) for i, kind in TENSOR_TYPES.items()} == sizes
    assert {kind.name for kind in SUPPORTED.values()} == {"F32", "F16", *(kind.name for kind in _type_traits)}


@pytest.mark.parametrize("type_id", SUPPORTED, ids=lambda type_id: SUPPORTED[type_id].name)
def test_every_supported_type_gives_ggmls_values(type_id: int, tmp_path: Path) -> None:
    """Random bytes, infinities and NaNs among them, in several slices: the same floats, and no warning."""
    kind = SUPPORTED[type_id]
    rows, columns = 300, 1024
    stored = np.random.default_rng(type_id).integers(0, 256, rows * columns // kind.block_size * kind.block_bytes)
    data = stored.astype(np.uint8)
    with open_bytes(
        tmp_path, file_bytes(tensors=[tensor_entry("t", [columns, rows], type_id, 0)], data=data.tobytes())
    ) as opened:
        with np.errstate(all="ignore"):
            expected = ggml.dequantize(data.reshape(rows, -1), ggml.GGMLQuantizationType(type_id))
        np.testing.assert_array_equal(opened.dequantize("t"), expected)
        np.testing.assert_array_equal(opened.dequantize("t", 7, 9), expected[7:9])
        assert opened.dequantize("t", 5, 5).shape == (0, columns)


def test_one_dimension_gives_one_and_more_give_rows(tmp_path: Path) -> None:
    entries = [tensor_entry("vector", [8], 0, 0), tensor_entry("cube", [2, 3, 4], 0, 32)]
    data = np.arange(32, dtype="<f4").tobytes()
    with open_bytes(tmp_path, file_bytes(tensors=entries, data=data)) as opened:
        assert opened.dequantize("vector").tolist() == list(range(8))
        assert opened.tensors["cube"].shape == (4, 3, 2)
        assert opened.dequantize("cube", 11).tolist() == [[30, 31]]
        with pytest.raises(IndexError, match="'cube', which has 12"):
            opened.dequantize("cube", 0, 13)


def test_raw_rows_are_the_files_own_bytes_and_a_read_only_view(small: GgufFile) -> None:
    info = small.tensors["blk.1.ffn_down.weight"]
    row_bytes = info.num_bytes // info.shape[0]
    view = small.raw(info.name, 2, 5)
    start = info.offset + 2 * row_bytes
    assert view == small.path.read_bytes()[start : start + 3 * row_bytes]
    assert view.readonly
    assert isinstance(view.obj, mmap.mmap)


def test_views_outlive_the_file(tmp_path: Path) -> None:
    opened = GgufFile.open(write_model(tmp_path / "small.gguf"))
    view = opened.raw("output_norm.weight")
    before = bytes(view)
    opened.close()
    assert bytes(view) == before == small_tensors()["output_norm.weight"].tobytes()


# What it costs.


def test_temporaries_of_a_large_tensor_stay_small(tmp_path: Path) -> None:
    """The type with the largest temporaries: 32 MiB of result, and less than 16 MiB beside it."""
    type_id, kind = next((i, kind) for i, kind in SUPPORTED.items() if kind.name == "IQ2_XXS")
    columns, rows = 4096, 2048
    num_bytes = rows * columns // kind.block_size * kind.block_bytes
    data = file_bytes(tensors=[tensor_entry("t", [columns, rows], type_id, 0)], data=bytes(num_bytes))
    with open_bytes(tmp_path, data) as opened:
        opened.dequantize("t", 0, 1)  # imports and tables
        tracemalloc.start()
        try:
            result = opened.dequantize("t")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak - result.nbytes < 16 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted as Linux counts them")
def test_releasing_a_tensor_gives_its_pages_back(model_path: Path) -> None:
    process = psutil.Process()
    with GgufFile.open(model_path) as opened:
        opened.tensor_digest("token_embd.weight")
        mapped = process.memory_info().rss
        opened.release("token_embd.weight")
        freed = mapped - process.memory_info().rss
        assert freed > 0.9 * opened.tensors["token_embd.weight"].num_bytes
        assert opened.raw("token_embd.weight")[:4] == opened.raw("token_embd.weight", 0, 1)[:4]


STAGE_STARTS = """
import resource, sys
from stagewire.model.config import read_config
from stagewire.model.digest import model_digest
from stagewire.model.gguf import GgufFile
from stagewire.model.layout import stage_tensors

def forbidden(*args):
    raise AssertionError("the vocabulary was parsed")

GgufFile.array = forbidden
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
gguf = GgufFile.open(sys.argv[1])
stage_tensors(gguf, read_config(gguf), 0, 12)
model_digest(gguf)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(after - before, "gguf" in sys.modules, "_stagewire_gguf" in sys.modules)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
def test_a_process_that_needs_no_vocabulary_does_not_parse_it(model_path: Path) -> None:
    """Its peak grows by less than the vocabulary would take; nor does it import any of the gguf package."""
    command = [sys.executable, "-c", STAGE_STARTS, str(model_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    growth_kib, whole_package, quants = run.stdout.split()
    assert (whole_package, quants) == ("False", "False")
    assert int(growth_kib) < 4 * 1024  # measured: 2 MiB; the parsed vocabulary takes 10 MiB more


# What is refused.


def assert_invalid(data: bytes, folder: Path, defect: str) -> None:
    with pytest.raises(ModelError, match=defect) as caught:
        open_bytes(folder, data)
    assert caught.value.code is ErrorCode.MODEL_FILE_INVALID
    assert "made.gguf" in caught.value.detail


NUMBER = key_value("n", 4, struct.pack("<I", 7))
VECTOR = tensor_entry("t", [8], 0, 0)


@pytest.mark.parametrize(
    ("data", "defect"),
    [
        (b"", "empty"),
        (b"<!doctype html><title>404</title>" * 9, "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata keys"),
        (b"GGUF\3", "truncated"),
        (file_bytes([NUMBER, NUMBER]), "'n' occurs twice"),
        (file_bytes([key_value("n", 99, b"")], data=ZEROS), "unknown value type 99"),
        (file_bytes([key_value("n", 7, b"\2")], data=ZEROS), "neither true nor false"),
        (
            file_bytes([key_value("n", 8, struct.pack("<Q", 1 << 62))]),
            "a string of 4611686018427387904 bytes",
        ),
        (file_bytes([key_value("n", 8, struct.pack("<Q", 1 << 20))]), "truncated"),
        (file_bytes([key_value("n", 8, text("x")[:8] + b"\xff")]), "not UTF-8"),
        (file_bytes([key_value("n", 9, struct.pack("<IQ", 9, 0))]), "item type 9"),
        (file_bytes([key_value("n", 9, struct.pack("<IQ", 4, 1 << 61))]), "items in array 'n'"),
        (file_bytes([key_value("n", 9, struct.pack("<IQ", 8, 1) + b"\xff" * 8)]), "truncated"),
        (file_bytes([key_value("n", 9, struct.pack("<IQ", 12, 40))], data=bytes(64)), "truncated"),
        (file_bytes([key_value("general.alignment", 4, struct.pack("<I", 24))]), "general.alignment=24"),
        (file_bytes([key_value("general.alignment", 8, text("x"))]), "general.alignment='x'"),
        (file_bytes(tensors=[VECTOR, VECTOR], data=ZEROS), "'t' occurs twice"),
        (file_bytes(tensors=[VECTOR], data=ZEROS[:31]), "ends beyond the file"),
        (file_bytes(tensors=[tensor_entry("t", [8], 0, 16)], data=ZEROS), "offset 16"),
        (file_bytes(tensors=[tensor_entry("t", [8], 0, 1 << 63)], data=ZEROS), "ends beyond the file"),
        (file_bytes(tensors=[tensor_entry("t", [], 0, 0)], data=ZEROS), "0 dimensions"),
        (file_bytes(tensors=[tensor_entry("t", [1] * 5, 0, 0)], data=ZEROS), "5 dimensions"),
        (file_bytes(tensors=[tensor_entry("t", [8, 0], 0, 0)], data=ZEROS), "impossible shape"),
        (file_bytes(tensors=[tensor_entry("t", [1 << 63, 2], 0, 0)], data=ZEROS), "impossible shape"),
        (file_bytes(tensors=[tensor_entry("t", [1 << 40] * 4, 0, 0)], data=ZEROS), "ends beyond the file"),
        (file_bytes(tensors=[tensor_entry("t", [33], 8, 0)], data=ZEROS), "not whole Q8_0 blocks"),
        (file_bytes(tensors=[VECTOR, tensor_entry("u", [8], 0, 0)], data=ZEROS), "'t' and 'u' overlap"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_file_is_refused_by_its_name_and_defect(data: bytes, defect: str, tmp_path: Path) -> None:
    assert_invalid(data, tmp_path, defect)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        GgufFile.open(tmp_path / "absent.gguf")
    with pytest.raises(ModelError, match="directory"):
        GgufFile.open(tmp_path)


def test_every_truncation_of_a_model_is_refused(small: GgufFile, tmp_path: Path) -> None:
    whole = small.path.read_bytes()
    last = max(info.offset + info.num_bytes for info in small.tensors.values())
    for end in [*range(0, small.header_bytes, 7), *range(small.header_bytes, last, 997), last - 1]:
        with pytest.raises(ModelError):
            open_bytes(tmp_path, whole[:end])


def test_a_type_that_cannot_be_used_is_named_when_its_tensor_is_used(tmp_path: Path) -> None:
    entries = [
        tensor_entry("odd", [8], 77, 0),
        tensor_entry("counts", [8], 26, 32),
        tensor_entry("t", [8], 0, 64),
    ]
    with open_bytes(tmp_path, file_bytes(tensors=entries, data=ZEROS)) as opened:
        assert opened.dequantize("t").tolist() == [0.0] * 8
        for name, kind in (("odd", "77"), ("counts", "I32")):
            with pytest.raises(ModelError, match=f"'{name}' has type {kind}") as caught:
                opened.dequantize(name)
            assert caught.value.code is ErrorCode.UNSUPPORTED_TENSOR_TYPE
        with pytest.raises(ModelError, match="'odd' has type 77"):
            opened.tensor_digest("odd")
        opened.release("odd")
        with pytest.raises(ModelError, match="'absent' is missing"):
            opened.dequantize("absent")


def use_all(opened: GgufFile) -> None:
    """Everything that reads a file may raise on a damaged one, but only ModelError."""
    for key in opened.arrays:
        opened.array(key)
    for name in opened.tensors:
        opened.dequantize(name)
        opened.tensor_digest(name)
        opened.release(name)


changes = st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 255)), max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(changes=changes, cut=st.none() | st.integers(0, 1 << 30), in_header=st.booleans())
def test_a_mutated_or_truncated_file_raises_only_model_errors(
    changes: list[tuple[int, int]], cut: int | None, in_header: bool, small: GgufFile, tmp_path: Path
) -> None:
    data = bytearray(small.path.read_bytes())
    limit = small.header_bytes if in_header else len(data)
    for position, value in changes:
        data[position % limit] = value
    end = len(data) if cut is None else cut % (limit + 1)
    try:
        with open_bytes(tmp_path, bytes(data[:end])) as opened:
            use_all(opened)
    except ModelError:
        pass


@settings(deadline=None)
@given(data=st.binary(max_size=300), is_gguf=st.booleans())
def test_random_bytes_raise_only_model_errors(
    data: bytes, is_gguf: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    preamble = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) if is_gguf else b""
    path = tmp_path_factory.getbasetemp() / f"random-{os.getpid()}.gguf"
    path.write_bytes(preamble + data)
    try:
        with GgufFile.open(path) as opened:
            use_all(opened)
    except ModelError:
        pass


def test_a_tensor_digest_is_over_name_type_shape_and_bytes(tmp_path: Path) -> None:
    def digest(name: str, dimensions: list[int], type_id: int, data: bytes) -> bytes:
        made = file_bytes(tensors=[tensor_entry(name, dimensions, type_id, 0)], data=data)
        with open_bytes(tmp_path, made) as opened:
            return opened.tensor_digest(name)

    same = hashlib.sha256(b'["t", "F32", [2, 4]]\n' + ZEROS[:32]).digest()
    assert digest("t", [4, 2], 0, ZEROS) == same
    assert digest("u", [4, 2], 0, ZEROS) != same
    assert digest("t", [2, 4], 0, ZEROS) != same
    assert digest("t", [4, 2], 26, ZEROS) != same
    assert digest("t", [4, 2], 0, b"\1" + ZEROS) != same
