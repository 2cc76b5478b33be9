"""Shapes and configurations of benchmarks/gpu/memory.py. The shapes come from the config.json of published models."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Values = dict[str, Any]


def _like_llama(kind: str, hidden: int, wide: int, layers: int, heads: int, vocab: int, **more: Any) -> Values:
    """Returns a Llama-like config with eight key-value heads."""
    shape = {
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0, "max_position_embeddings": 32_768}
    return {"model_type": kind, "num_key_value_heads": 8, "vocab_size": vocab} | shape | ends | more


_TIED = {"tie_word_embeddings": True}
_QWEN3 = {"head_dim": 128} | _TIED
_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
_TINY = {"num_key_value_heads": 2}
SHAPES: dict[str, Values] = {
    "gpt2": {"model_type": "gpt2", "bos_token_id": None, "eos_token_id": 1, "vocab_size": 50_257, "n_positions": 1024}
    | {"n_embd": 768, "n_layer": 12, "n_head": 12}
    | {"resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0},
    "llama-1b": _like_llama("llama", 2048, 8192, 16, 32, 128_256, head_dim=64, **_TIED),
    "llama-8b": _like_llama("llama", 4096, 14_336, 32, 32, 128_256, tie_word_embeddings=False),
    "mistral-7b": _like_llama("mistral", 4096, 14_336, 32, 32, 32_768, sliding_window=None, tie_word_embeddings=False),
    "mixtral-1b": _like_llama("mixtral", 1024, 3584, 12, 16, 32_000, tie_word_embeddings=False, **_EXPERTS),
    "qwen3-0.6b": _like_llama("qwen3", 1024, 3072, 28, 16, 151_936, **_QWEN3),
    "qwen3-1.7b": _like_llama("qwen3", 2048, 6144, 28, 16, 151_936, **_QWEN3),
    "qwen3-4b": _like_llama("qwen3", 2560, 9728, 36, 32, 151_936, **_QWEN3),
    "tiny-llama": _like_llama("llama", 256, 704, 4, 4, 4000, tie_word_embeddings=False, **_TINY),
    "tiny-qwen3": _like_llama("qwen3", 256, 704, 4, 4, 4000, head_dim=64, **_TIED | _TINY),
}  # fmt: skip


_WORDS = {
    ("packing", "none"): "padded",
    ("packing", "padding_free"): "flat",
    ("gradient_checkpointing", "full"): "checkpointing",
    ("gradient_checkpointing", "selective"): "selective checkpointing",
    ("weights_precision", "bf16"): "bf16 weights",
    ("optimizer", "adamw_8bit"): "8-bit AdamW",
}


@dataclass(frozen=True)
class Case:
    """A shape, a method, rows of equal length, and changed settings."""

    shape: str
    method: str
    rows: int
    length: int
    settings: Values = field(default_factory=dict)

    @property
    def name(self) -> str:
        words = [
            _WORDS.get((name, value), f"{name} {value}".replace("_", " ")) for name, value in self.settings.items()
        ]
        return ", ".join([self.shape, self.method, f"{self.rows} x {self.length:,}", *words])

    @property
    def needs_bitsandbytes(self) -> bool:
        return self.method in ("4bit", "8bit") or self.settings.get("optimizer") == "adamw_8bit"

    @property
    def precision(self) -> str:
        """Returns the precision; fp32 on CPU, since most CPUs compute bf16 very slowly."""
        return "fp32" if self in SMALL else "bf16"

    def config(self, home: Path) -> Values:
        """Returns the settings of the run for RunConfig."""
        known: dict[str, Values] = {"full": {"method": "full", "learning_rate": 1e-5}, "lora": {"method": "lora"}}
        method = known.get(self.method, {"method": "qlora", "quantization": self.method})
        if method["method"] != "full":
            method |= {"target_modules": "all-linear"}
        same: Values = {
            "model": str(home / self.shape), "data": "random rows", "precision": self.precision, "max_steps": 3, "eval_split": 0,
            "eval_steps": 0, "save_steps": 0, "probe": "off", "micro_batch_size": self.rows, "max_length": self.length,
        }  # fmt: skip
        return same | method | self.settings


_FULL, _SELECTIVE = {"gradient_checkpointing": "full"}, {"gradient_checkpointing": "selective"}
_PADDED, _FLAT = {"packing": "none"}, {"packing": "padding_free"}
_LIGHT = {"optimizer": "adamw_8bit", "weights_precision": "bf16"}
LARGE = (
    Case("gpt2", "full", 8, 1024, _PADDED),
    Case("gpt2", "lora", 8, 1024, _FLAT),
    Case("gpt2", "full", 16, 512, {"optimizer": "adamw_8bit"} | _PADDED),
    Case("qwen3-0.6b", "full", 4, 1024, _PADDED),
    Case("qwen3-0.6b", "lora", 8, 1024, _PADDED),
    Case("qwen3-0.6b", "lora", 2, 8192, _FULL | _PADDED),
    Case("qwen3-0.6b", "full", 4, 2048, _SELECTIVE | _PADDED),
    Case("llama-1b", "full", 4, 1024, _PADDED),
    Case("llama-1b", "full", 4, 2048, _FULL | _PADDED),
    Case("llama-1b", "lora", 4, 2048, _FLAT),
    Case("llama-1b", "lora", 4, 2048, _PADDED),
    Case("llama-1b", "4bit", 4, 2048, _PADDED),
    Case("llama-8b", "lora", 1, 1024, _PADDED),
    Case("llama-8b", "lora", 4, 4096, _FULL | _PADDED),
    Case("llama-8b", "4bit", 2, 4096, _FULL | _PADDED),
    Case("llama-8b", "full", 1, 2048, _LIGHT | _FULL | _PADDED),
    Case("mistral-7b", "lora", 2, 2048, _FULL | _FLAT),
    Case("mistral-7b", "4bit", 1, 2048, _PADDED),
    Case("mistral-7b", "8bit", 2, 1024, _FULL | _PADDED),
    Case("mixtral-1b", "lora", 2, 1024, _PADDED),
    Case("mixtral-1b", "full", 2, 1024, _FULL | _PADDED),
    Case("mixtral-1b", "4bit", 2, 1024, _PADDED),
    Case("qwen3-1.7b", "full", 2, 1024, _PADDED),
    Case("qwen3-1.7b", "full", 2, 2048, _LIGHT | _PADDED),
    Case("qwen3-1.7b", "lora", 4, 2048, _SELECTIVE | _PADDED),
    Case("qwen3-1.7b", "8bit", 4, 1024, _PADDED),
    Case("qwen3-4b", "lora", 2, 1024, _FLAT),
    Case("qwen3-4b", "lora", 4, 2048, _FULL | _PADDED),
    Case("qwen3-4b", "4bit", 1, 8192, _FULL | _PADDED),
    Case("qwen3-4b", "full", 2, 1024, _LIGHT | _FULL | _PADDED),
)
SMALL = (
    Case("tiny-llama", "full", 2, 256, _PADDED),
    Case("tiny-qwen3", "lora", 4, 128, _SELECTIVE | _FLAT),
)


def write_shapes(home: Path) -> None:
    """Writes a folder with a config.json for each shape."""
    for name, values in SHAPES.items():
        (home / name).mkdir(exist_ok=True)
        (home / name / "config.json").write_text(json.dumps(values), encoding="utf-8")
