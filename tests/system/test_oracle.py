"""The arithmetic against an independent implementation that was fed the same weights."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from support.whole_model import whole_model

from stagewire.client.text.tokenizer import Tokenizer
from stagewire.model.card import build_card
from stagewire.model.gguf import GgufFile
from stagewire.stage.compute.operators import Batch, SequenceRows
from stagewire.wire.card import ModelConfig

TEXT = (
    "The river had carried the town's secrets for longer than anyone could remember. In spring it rose over the "
    "lower meadow and left silt, bottles, once a chair; in August it shrank to a thread between stones, and children "
    "walked across it without wetting their ankles. Maria counted 1,482 steps from the mill to the bridge, wrote "
    "the number in her notebook, and crossed it out again: yesterday there had been 1,480. `def distance(a, b): return "
    "abs(a - b)` was the only line of code she knew by heart, and she used it for everything: for prices, for years, "
    "for the space between two people on a bench. When the flood came that night, it took the notebook first, then the "
    "bench, and finally the bridge itself, which sailed past the mill at 3:07 with its lamps still burning. Nobody "
    "spoke of it afterwards, and in the morning the water was as clear as glass, as if it had nothing to hide at all."
)


def hugging_face_state(gguf: GgufFile, config: ModelConfig) -> dict[str, torch.Tensor]:
    """The dequantized tensors under the other side's names, heads back in its order (halves, not pairs)."""

    def tensor(name: str) -> NDArray[np.float32]:
        return gguf.dequantize(name)

    def halves(name: str, num_heads: int) -> NDArray[np.float32]:
        weight = tensor(name)
        pairs = weight.reshape(num_heads, config.head_dim // 2, 2, weight.shape[1])
        return np.asarray(pairs.swapaxes(1, 2).reshape(weight.shape), dtype=np.float32)

    state = {
        "model.embed_tokens.weight": tensor("token_embd.weight"),
        "model.norm.weight": tensor("output_norm.weight"),
    }
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    for index in range(config.num_layers):
        ours, theirs = f"blk.{index}", f"model.layers.{index}"
        state[f"{theirs}.self_attn.q_proj.weight"] = halves(f"{ours}.attn_q.weight", config.num_heads)
        state[f"{theirs}.self_attn.k_proj.weight"] = halves(f"{ours}.attn_k.weight", config.num_kv_heads)
        for our, their in (
            ("attn_v", "self_attn.v_proj"),
            ("attn_output", "self_attn.o_proj"),
            ("ffn_gate", "mlp.gate_proj"),
            ("ffn_up", "mlp.up_proj"),
            ("ffn_down", "mlp.down_proj"),
            ("attn_norm", "input_layernorm"),
            ("ffn_norm", "post_attention_layernorm"),
        ):
            state[f"{theirs}.{their}.weight"] = tensor(f"{ours}.{our}.weight")
    return {name: torch.from_numpy(np.array(value)) for name, value in state.items()}


def test_f32_logits_agree_with_transformers(gguf_file: GgufFile) -> None:
    """At every position of a 200-token text, to 1e-3; and bf16 stays near."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415  takes seconds

    model = whole_model("f32")
    config = model.config
    oracle = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            rope_theta=config.rope_theta,
            tie_word_embeddings=True,
            attn_implementation="eager",
        )
    ).eval()
    oracle.load_state_dict(hugging_face_state(gguf_file, config))
    token_ids = Tokenizer(build_card(gguf_file, "m")).encode(TEXT)[:200]
    assert len(token_ids) == 200
    with torch.inference_mode():
        expected = oracle(torch.tensor([token_ids])).logits[0].float().numpy()
    batch = Batch.of(token_ids, [SequenceRows(0, 200, 0, np.arange(13, dtype=np.int32))], range(200))
    ours = model.stage(0, config.num_layers).forward(batch, None)
    assert np.abs(ours - expected).max() <= 1e-3
    half = whole_model("bf16").stage(0, config.num_layers).forward(batch, None)
    assert (half.argmax(-1) == expected.argmax(-1)).mean() > 0.95
