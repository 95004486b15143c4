"""Which arithmetic a stage gets: the native kernels where they can be had, and else a reason that says what to do."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.native_files import VOCAB, write_native_model
from support.native_operators import FAST_VARIANTS, kernel_or_skip, same_bits

from stagewire.model.config import read_config
from stagewire.model.gguf import GgufFile
from stagewire.stage.backend import Backend, load_backend
from stagewire.stage.compute.operators import Batch, SequenceRows
from stagewire.stage.native import kernel as native_kernel
from stagewire.stage.native.kernel import best_kernel, load_kernel, runnable_variants
from stagewire.stage.settings import StageSettings
from stagewire.wire.errors import SettingsError

built = pytest.mark.skipif(not runnable_variants(), reason="the native kernels are not built")


def load(path: Path, layers: tuple[int, int] = (0, 2), **settings: str | int) -> Backend:
    with GgufFile.open(path) as gguf:
        config = read_config(gguf)
    start, end = layers
    common = StageSettings(model=str(path), control_endpoint="tcp://127.0.0.1:1", layer_start=start, kv_tokens=64)
    return load_backend(path, config, replace(common, **settings), end)  # type: ignore[arg-type]  # each its own


def batch_of(num_rows: int) -> Batch:
    token_ids = np.random.default_rng(0).integers(0, VOCAB, num_rows).astype(np.int32)
    return Batch.of(token_ids, [SequenceRows(0, num_rows, 0, np.array([2, 0, 3], np.int32))], range(num_rows))


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_native_model(tmp_path_factory.mktemp("model") / "q.gguf", "Q4_1")


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_native_model(tmp_path_factory.mktemp("model") / "f.gguf", "F16")


@pytest.fixture(autouse=True)
def closed_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stage keeps its file open as long as its process lives; these stages end sooner."""
    files, really_open = [], GgufFile.open

    def open_file(path: Path) -> GgufFile:
        files.append(really_open(path))
        return files[-1]

    monkeypatch.setattr(GgufFile, "open", staticmethod(open_file))
    yield
    for file in files:
        file.close()


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where no compiler was found."""
    monkeypatch.setattr(native_kernel, "runnable_variants", tuple)


# ---- The choice


@built
def test_a_quantized_file_is_computed_as_it_is_stored_by_the_fastest_kernels(quantized: Path) -> None:
    backend = load(quantized)
    assert (backend.precision, backend.kernel) == ("stored", runnable_variants()[0])
    assert backend.operators.is_row_exact
    assert backend.operators.num_blocks == 4
    assert backend.operators.fingerprint.startswith("native-1-stored-f16-")


@built
@pytest.mark.parametrize("precision", ["stored", "int8", "int4"])
def test_a_precision_that_is_asked_for_is_had(quantized: Path, precision: str) -> None:
    backend = load(quantized, precision=precision)
    assert (backend.precision, backend.kernel) == (precision, runnable_variants()[0])


@pytest.mark.parametrize("precision", ["bf16", "f32"])
def test_float_precisions_are_computed_by_pytorch(quantized: Path, precision: str) -> None:
    backend = load(quantized, precision=precision)
    assert (backend.precision, backend.kernel) == (precision, "torch")


@built
def test_a_file_of_floats_goes_to_pytorch_unless_stored_weights_are_asked_for(
    floats: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "stagewire.stage"):
        assert load(floats).kernel == "torch"
    assert "this file holds floats" in caplog.text
    assert load(floats, precision="stored").kernel == runnable_variants()[0]


def test_without_kernels_pytorch_computes_and_the_log_says_why(
    quantized: Path, without_kernels: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "stagewire.stage"):
        backend = load(quantized)
    assert (backend.precision, backend.kernel) == ("bf16", "torch")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "event=no_native_kernels" in line and "install again where there is a C++ compiler" in line


@pytest.mark.parametrize("precision", ["stored", "int8", "int4"])
def test_without_kernels_what_needs_them_is_refused(quantized: Path, without_kernels: None, precision: str) -> None:
    with pytest.raises(SettingsError, match=rf"precision='{precision}' needs the native kernels, .*C\+\+ compiler"):
        load(quantized, precision=precision)


@built
@pytest.mark.parametrize("precision", ["stored", "int8", "int4"])
def test_a_shape_that_the_kernels_lack_is_refused_by_name_and_left_to_pytorch(tmp_path: Path, precision: str) -> None:
    heads = {f"llama.attention.{key}_length": 8 for key in ("key", "value")} | {"llama.rope.dimension_count": 8}
    path = write_native_model(tmp_path / "m.gguf", {"": "Q8_0", "attn_output.weight": "Q8_0"}, heads)
    with pytest.raises(SettingsError, match="head_dim 8 is not a multiple of 16"):
        load(path, precision=precision)
    assert load(path).kernel == "torch"


@built
def test_a_type_that_the_kernels_lack_is_refused_by_name_or_rounded(tmp_path: Path) -> None:
    path = write_native_model(tmp_path / "m.gguf", {"": "Q8_0", "1.ffn_up.weight": "TQ2_0"})
    with pytest.raises(SettingsError, match=r"blk\.1\.ffn_up\.weight has type TQ2_0"):
        load(path, precision="stored")
    assert load(path).kernel == "torch"
    assert load(path, precision="int8").kernel == runnable_variants()[0]
    assert load(path, (0, 1), precision="stored").kernel == runnable_variants()[0], "another stage's tensor"
    assert load(path, (0, 1)).kernel == "torch", "all stages of a model choose alike"


@built
@pytest.mark.parametrize("precision", ["stored", "int8", "int4"])
def test_another_device_than_the_cpu_is_refused(quantized: Path, precision: str) -> None:
    with pytest.raises(SettingsError, match="CPU only, not on meta"):
        load(quantized, precision=precision, device="meta")


@pytest.mark.parametrize("kv_precision", ["f16", "f32"])
def test_pytorch_has_no_choice_of_kv_precision(quantized: Path, kv_precision: str) -> None:
    with pytest.raises(SettingsError, match=f"kv_precision='{kv_precision}'.*use auto"):
        load(quantized, precision="f32", kv_precision=kv_precision)


# ---- The environment


@built
@pytest.mark.parametrize("variant", ["portable", *FAST_VARIANTS])
def test_the_environment_names_another_variant(quantized: Path, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_or_skip(variant)
    monkeypatch.setenv("STAGEWIRE_KERNEL", variant)
    assert load(quantized).kernel == variant
    assert best_kernel() == (variant, load_kernel(variant))


def test_a_variant_that_cannot_be_had_is_refused_with_those_that_can(
    quantized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGEWIRE_KERNEL", "sse2")
    with pytest.raises(SettingsError, match=f"'sse2': to be had here are {', '.join(runnable_variants()) or 'none'}"):
        load(quantized)
    with pytest.raises(ImportError, match="sse2"):
        load_kernel("sse2")


# ---- What it computes


@built
@pytest.mark.parametrize("precision", ["stored", "int8", "int4"])
@pytest.mark.parametrize("kv_precision", ["f16", "f32"])
def test_all_variants_have_one_fingerprint_and_one_answer(
    quantized: Path, precision: str, kv_precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unequal machines can be replicas of each other."""
    fingerprints, logits = set(), []
    for variant in runnable_variants():
        monkeypatch.setenv("STAGEWIRE_KERNEL", variant)
        operators = load(quantized, precision=precision, kv_precision=kv_precision).operators
        fingerprints.add(operators.fingerprint)
        logits.append(operators.forward(batch_of(40), None))
    assert len(fingerprints) == 1
    assert np.isfinite(logits[0]).all() and logits[0].std() > 0
    assert all(same_bits(logits[0], other) for other in logits)


@built
def test_unequal_arithmetic_has_unequal_fingerprints(quantized: Path) -> None:
    """Weights, keys, and the rotation or the epsilon of another model; but not the number of threads."""
    loaded = [
        load(quantized, precision=precision, kv_precision=kv_precision).operators.fingerprint
        for precision in ("stored", "int8", "int4")
        for kv_precision in ("f16", "f32")
    ]
    assert len(set(loaded)) == 6
    assert load(quantized, kv_precision="auto", threads=2).operators.fingerprint == loaded[0]


@built
@pytest.mark.parametrize(
    "changes", [{"llama.rope.freq_base": 500000.0}, {"llama.attention.layer_norm_rms_epsilon": 1e-6}]
)
def test_a_model_that_computes_otherwise_has_another_fingerprint(
    quantized: Path, tmp_path: Path, changes: dict[str, float]
) -> None:
    other = write_native_model(tmp_path / "m.gguf", "Q4_1", changes)
    assert load(other).operators.fingerprint != load(quantized).operators.fingerprint


@built
def test_two_stages_compute_what_one_does(quantized: Path) -> None:
    """And what came over the hop is not written to."""
    whole, first, last = load(quantized), load(quantized, (0, 1)), load(quantized, (1, 2))
    assert whole.operators.fingerprint == first.operators.fingerprint == last.operators.fingerprint
    hidden = first.operators.forward(batch_of(40), None)
    hidden.flags.writeable = False
    logits = last.operators.forward(batch_of(40), hidden)
    assert same_bits(logits, whole.operators.forward(batch_of(40), None))


@built
def test_weights_and_file_bytes_are_those_of_the_stages_own_tensors(quantized: Path) -> None:
    """A first stage looks embeddings up in the file: they take no memory of their own."""
    first, last = load(quantized, (0, 1)).operators, load(quantized, (1, 2)).operators
    whole = load(quantized).operators
    assert first.weight_bytes + last.weight_bytes == whole.weight_bytes
    with GgufFile.open(quantized) as gguf:
        embedding_bytes = gguf.tensor("token_embd.weight").num_bytes
        assert whole.file_bytes == sum(info.num_bytes for info in gguf.tensors.values())
    assert first.file_bytes + last.file_bytes == whole.file_bytes + embedding_bytes
    assert first.weight_bytes == first.file_bytes - embedding_bytes, "Q4_1 takes in memory what it takes in the file"


@built
def test_a_native_stage_does_not_import_torch(quantized: Path) -> None:
    """It costs a second and 190 MB."""
    code = f"""
import sys
from pathlib import Path
import numpy as np
from stagewire.model.config import read_config
from stagewire.model.gguf import GgufFile
from stagewire.stage.backend import load_backend
from stagewire.stage.compute.operators import Batch, SequenceRows
from stagewire.stage.settings import StageSettings
path = Path({str(quantized)!r})
config = read_config(GgufFile.open(path))
settings = StageSettings(model=str(path), control_endpoint="tcp://127.0.0.1:1", kv_tokens=64)
operators = load_backend(path, config, settings, config.num_layers).operators
table = np.zeros(1, np.int32)
assert operators.forward(Batch.of([1, 2], [SequenceRows(0, 2, 0, table)], [1]), None).shape == (1, {VOCAB})
assert "torch" not in sys.modules, "torch was imported"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
