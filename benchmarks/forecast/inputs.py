"""Models of 15 to 40 million parameters, data with batches of equal size, and the configurations of `benchmarks.forecast`."""

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.matrix.command import Cell
from benchmarks.matrix.inputs import byte_tokenizer
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules import check

VOCABULARY = 16_000
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"n_embd": 384, "n_layer": 6, "n_head": 6, "n_positions": 1024}),
    "llama": (
        "LlamaConfig",
        {"hidden_size": 448, "intermediate_size": 1216, "num_hidden_layers": 6, "num_attention_heads": 7},
    ),
    "qwen3": (
        "Qwen3Config",
        {
            "hidden_size": 384,
            "intermediate_size": 1024,
            "num_hidden_layers": 6,
            "num_attention_heads": 6,
            "head_dim": 64,
        }
        | {"num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "t5": (
        "T5Config",
        {"d_model": 384, "d_kv": 64, "d_ff": 1024, "num_layers": 5, "num_heads": 6, "feed_forward_proj": "gated-gelu"}
        | {"decoder_start_token_id": 0},
    ),
}
METHODS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "learning_rate": 1e-4},
    "lora": {"method": "lora", "target_modules": "all-linear"},
    "4bit": {"method": "qlora", "quantization": "4bit", "target_modules": "all-linear"},
}
SHARDED = ("ddp", "zero1", "zero2", "zero3", "fsdp")
BASE = {"max_steps": 3, "eval_split": 0, "eval_steps": 0, "save_steps": 0, "memory_limit": 65_536, "logging_steps": 1}


@dataclass
class Case(Cell):
    """A configuration with its rows: their number per device, and their tokens."""

    shape: str = ""
    checkpointing: str = "none"
    rows: int = 2
    length: int = 256

    @property
    def source(self) -> int:
        """Returns the tokens of a row; for T5 those of the source, that is, the prompt and its end token."""
        return self.length // 2 + 1 if self.shape == "t5" else self.length

    @property
    def name(self) -> str:
        words = [self.shape, self.method, self.strategy, self.precision, f"{self.rows} x {self.length}"]
        return " ".join([*words, *(["checkpointing"] if self.checkpointing != "none" else [])])


def cases(home: Path) -> list[Case]:
    """Returns every configuration that no rule refuses."""
    single = [
        (shape, method, "single", "fp32", checkpointing, rows, length)
        for shape, method, (checkpointing, rows, length) in product(
            SHAPES, METHODS, (("none", 2, 256), ("full", 1, 512))
        )
    ]
    trained = (("llama", "full", "none"), ("llama", "lora", "full"), ("gpt2", "full", "full"), ("t5", "full", "none"))
    shared = [
        (shape, method, strategy, "fp32", checkpointing, 2, 256)
        for (shape, method, checkpointing), strategy in product((*trained, ("qwen3", "lora", "none")), SHARDED)
    ]
    rounded = [
        ("llama", method, strategy, "bf16", "none", 2, 256)
        for method, strategy in product(("full", "lora"), ("single", "zero2", "fsdp"))
    ]
    result = []
    for shape, method, strategy, precision, checkpointing, rows, length in (*single, *shared, *rounded):
        task = "seq2seq" if shape == "t5" else "sft"
        case = Case(
            task, method, strategy, precision, shape=shape, checkpointing=checkpointing, rows=rows, length=length
        )
        case.config = BASE | METHODS[method] | {
            "task": task, "strategy": strategy, "precision": precision, "gradient_checkpointing": checkpointing,
            "micro_batch_size": rows, "max_length": length, "num_processes": case.ranks,
            "model": str(home / shape), "data": str(home / f"{length}.jsonl"),
        }  # fmt: skip
        if not any(item.blocking for item in check(RunConfig.model_validate(case.config), Machine())):
            result.append(case)
    return result


def make_inputs(home: Path) -> None:
    """Makes the models, in folders named after their shapes, and rows whose prompt and answer have equal length."""
    import torch
    import transformers

    for name, (kind, shape) in SHAPES.items():
        torch.manual_seed(0)
        ends = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
        config = getattr(transformers, kind)(**shape, **ends)
        auto = transformers.AutoModelForSeq2SeqLM if name == "t5" else transformers.AutoModelForCausalLM
        auto.from_config(config).save_pretrained(home / name)
        byte_tokenizer().save_pretrained(home / name)
    for length in (256, 512):
        row = {"prompt": "a" * (length // 2), "completion": "b" * length}
        (home / f"{length}.jsonl").write_text((json.dumps(row) + "\n") * 16, encoding="utf-8")
