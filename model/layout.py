"""Which tensors of a model file belong to which range of layers; it reads their table, never their bytes."""

from __future__ import annotations

from collections.abc import Mapping

from stagewire.model.gguf import GgufFile
from stagewire.wire.card import ModelConfig
from stagewire.wire.errors import ErrorCode, ModelError, SettingsError

EMBEDDING = "token_embd.weight"
OUTPUT_NORM = "output_norm.weight"
OUTPUT = "output.weight"


def layer_tensor_shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Returns the tensors of a layer, without the prefix `blk.N.`, and their shapes, [outputs, inputs]."""
    hidden, middle = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (query, hidden),
        "attn_k.weight": (key, hidden),
        "attn_v.weight": (key, hidden),
        "attn_output.weight": (hidden, query),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (middle, hidden),
        "ffn_up.weight": (middle, hidden),
        "ffn_down.weight": (hidden, middle),
    }


def check_layer_range(config: ModelConfig, layer_start: int, layer_end: int) -> None:
    """Checks that `[layer_start, layer_end)` is a non-empty range of the model's layers.

    Raises:
        SettingsError: INVALID_LAYER_RANGE, naming the range and the model's number of layers.
    """
    if not 0 <= layer_start < layer_end <= config.num_layers:
        raise SettingsError(
            f"layers {layer_start}:{layer_end} are not a range within 0:{config.num_layers}",
            ErrorCode.INVALID_LAYER_RANGE,
        )


def stage_tensors(gguf: GgufFile, config: ModelConfig, layer_start: int, layer_end: int) -> tuple[str, ...]:
    """Returns the names of all tensors that a stage with these layers needs, in the order of their use.

    The first stage has the token embedding; the last has the output norm and the output projection, which is
    the token embedding again where the model ties them. Shapes and types are checked as well.

    Raises:
        SettingsError: INVALID_LAYER_RANGE.
        ModelError: MODEL_FILE_INVALID, naming a tensor that is missing or misshapen;
            UNSUPPORTED_TENSOR_TYPE, naming tensor and type; UNSUPPORTED_ARCHITECTURE, naming a tensor, such
            as a bias, that the decoder would have to ignore.
    """
    check_layer_range(config, layer_start, layer_end)
    _refuse_unknown_tensors(gguf, config)
    shapes = _stage_shapes(config, layer_start, layer_end)
    for name, shape in shapes.items():
        found = gguf.tensor(name).shape
        if found != shape:
            raise ModelError(f"{gguf.path}: tensor {name!r} has shape {found}, expected {shape}")
        gguf.tensor_type(name)
    return tuple(shapes)


def _stage_shapes(config: ModelConfig, layer_start: int, layer_end: int) -> dict[str, tuple[int, ...]]:
    matrix = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {}
    if layer_start == 0:
        shapes[EMBEDDING] = matrix
    for layer in range(layer_start, layer_end):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in layer_tensor_shapes(config).items()}
    if layer_end == config.num_layers:
        shapes[OUTPUT_NORM] = (config.hidden_size,)
        shapes[EMBEDDING if config.tie_word_embeddings else OUTPUT] = matrix
    return shapes


def stage_bytes(gguf: GgufFile, config: ModelConfig, layer_start: int, layer_end: int) -> int:
    """Returns the bytes of those tensors in the file.

    Raises:
        SettingsError, ModelError: as `stage_tensors`.
    """
    return sum(gguf.tensor(name).num_bytes for name in stage_tensors(gguf, config, layer_start, layer_end))


def _refuse_unknown_tensors(gguf: GgufFile, config: ModelConfig) -> None:
    # The whole file, not the stage's part: so all stages of a model give the same answer.
    known = {EMBEDDING, OUTPUT_NORM, OUTPUT}
    for layer in range(config.num_layers):
        known.update(f"blk.{layer}.{name}" for name in layer_tensor_shapes(config))
    for name in gguf.tensors:
        if name not in known:
            raise ModelError(
                f"{gguf.path}: the tensor {name!r} is not part of a {config.architecture} model as it is "
                "supported here; ignoring it would give wrong answers",
                ErrorCode.UNSUPPORTED_ARCHITECTURE,
            )
