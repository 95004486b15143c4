"""Model cards for tests of text: the default model's, and tiny ones with every byte as a token."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers.pre_tokenizers import ByteLevel

from stagewire.wire.card import ModelCard, ModelConfig, TokenizerData

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6


def tiny_card(
    extra: Sequence[tuple[str, int]] = (),
    *,
    merges: Sequence[str] = (),
    pre: str = "smollm",
    chat_template: str | None = None,
    bos: str | None = None,
    padding: int = 0,
) -> ModelCard:
    """All 256 bytes as tokens, one per merge, then `extra` tokens with their types; `padding` more rows."""
    normal = [*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    tokens = (*normal, *(token for token, _ in extra))
    tokenizer = TokenizerData(
        model="gpt2",
        pre=pre,
        tokens=tokens,
        token_types=bytes([NORMAL] * len(normal) + [kind for _, kind in extra]),
        merges=tuple(merges),
        bos_token_id=tokens.index(bos) if bos else None,
        eos_token_id=None,
        add_bos=bos is not None,
    )
    config = ModelConfig(
        architecture="llama",
        num_layers=1,
        hidden_size=8,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        intermediate_size=8,
        vocab_size=len(tokens) + padding,
        context_length=4096,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_dim=8,
        tie_word_embeddings=True,
    )
    return ModelCard("tiny", config, tokenizer, chat_template, ())
