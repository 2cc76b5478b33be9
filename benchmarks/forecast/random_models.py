"""Random shapes of models of many families, as the values of a config.json."""

from random import Random
from typing import Any

Values = dict[str, Any]

CAUSAL = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "granite", "smollm3", "phi3", "gpt2", "opt",
    "gpt_neox", "bloom", "mixtral", "qwen2_moe", "qwen3_moe",
)  # fmt: skip
SEQ2SEQ = ("t5", "mt5")
EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe")
_VOCABULARIES = (1000, 4000, 16_000, 32_000, 50_257)


def draw_model(dice: Random, family: str) -> Values:
    """The values of a config.json of a model with 1 to 40 million parameters."""
    heads = dice.choice((4, 6, 8))
    hidden, layers = heads * dice.choice((32, 48, 64)), dice.randint(2, 6)
    values: Values = {
        "model_type": family,
        "vocab_size": dice.choice(_VOCABULARIES),
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    if family in SEQ2SEQ:
        gate = dice.choice(("gated-gelu", "relu")) if family == "t5" else "gated-gelu"
        return values | {
            "d_model": hidden, "d_kv": hidden // heads, "num_heads": heads, "num_layers": max(2, layers - 2),
            "d_ff": _wide(dice, hidden), "feed_forward_proj": gate, "decoder_start_token_id": 0,
            "dropout_rate": dice.choice((0.0, 0.1)),
        }  # fmt: skip
    values |= {"bos_token_id": None}
    if family == "gpt2":
        sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 1024}
        return values | sizes | dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), dice.choice((0.0, 0.1)))
    if family == "bloom":
        return values | {"hidden_size": hidden, "n_layer": layers, "n_head": heads}
    values |= {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 1024,
    }
    if family == "opt":
        return values | {"ffn_dim": 4 * hidden, "word_embed_proj_dim": hidden, "dropout": dice.choice((0.0, 0.1))}
    if family == "gpt_neox":
        return values | {"intermediate_size": 4 * hidden}
    values |= {"intermediate_size": _wide(dice, hidden), "tie_word_embeddings": dice.random() < 0.5}
    values |= {"num_key_value_heads": dice.choice([n for n in (1, 2, heads) if heads % n == 0])}
    if family in ("qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text"):
        values |= {"head_dim": dice.choice((32, 64))}
    if family in EXPERTS:
        count = dice.choice((4, 8))
        wide = hidden * dice.choice((1, 2)) // 2
        values |= {"num_experts_per_tok": 2, "num_local_experts" if family == "mixtral" else "num_experts": count}
        values |= {"intermediate_size": wide} if family == "mixtral" else {"moe_intermediate_size": wide}
        if family == "qwen2_moe":
            values |= {"shared_expert_intermediate_size": 2 * wide}
    return values


def _wide(dice: Random, hidden: int) -> int:
    """The width of an MLP: 2 to 4 times the hidden size, a multiple of 32."""
    return int(hidden * dice.uniform(2, 4)) // 32 * 32


def make_model(values: Values, folder: Any, seed: int) -> None:
    """Saves a model with random weights and a byte tokenizer, unless the folder exists."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    from benchmarks.matrix.inputs import byte_tokenizer

    torch.manual_seed(seed)
    config = AutoConfig.for_model(**values)
    auto: Any = AutoModelForSeq2SeqLM if values["model_type"] in SEQ2SEQ else AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
