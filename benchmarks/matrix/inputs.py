"""Models of about 100,000 parameters and a data set for each task, for benchmarks/matrix/command.py and the tests."""

import json
from pathlib import Path
from typing import Any

from training.config.task import Task

_SPECIAL = ("<|pad|>", "<|end|>")
_SIZE = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}


def make_models(home: Path) -> tuple[Path, Path]:
    """Makes a Llama and a T5 with random weights and a byte tokenizer. Returns their folders."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

    tokenizer = byte_tokenizer()
    ends: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1}
    torch.manual_seed(0)
    llama = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, bos_token_id=None, **ends
    )
    causal, seq2seq = home / "llama", home / "t5"
    LlamaForCausalLM(llama).save_pretrained(causal)
    T5ForConditionalGeneration(T5Config(**_SIZE, decoder_start_token_id=0, **ends)).save_pretrained(seq2seq)
    for folder in (causal, seq2seq):
        tokenizer.save_pretrained(folder)
    return causal, seq2seq


def byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=_SPECIAL[0], eos_token=_SPECIAL[1])


def make_data(home: Path, rows: int = 40) -> dict[Task, Path]:
    """Writes a data file for each task."""
    asked = [(f"count {n}: ", " ".join(str(n * 37))) for n in range(rows)]
    answered = _write(home / "answers.jsonl", [{"prompt": prompt, "completion": answer} for prompt, answer in asked])
    pairs = _write(
        home / "pairs.jsonl",
        [{"prompt": prompt, "chosen": answer, "rejected": "I do not know"} for prompt, answer in asked],
    )
    texts = [{"text": f"Once upon a time there were {n}. " * (1 + n % 9)} for n in range(rows)]
    answers = [answer if n % 2 == 0 else "I do not know" for n, (_, answer) in enumerate(asked)]
    labeled = [{"prompt": prompt, "completion": answers[n], "label": n % 2 == 0} for n, (prompt, _) in enumerate(asked)]
    classes = [{"text": f"number {n}", "label": ("even", "odd")[n % 2]} for n in range(rows)]
    return {
        Task.SFT: answered,
        Task.SEQ2SEQ: answered,
        Task.GRPO: answered,
        Task.DISTILL: answered,
        Task.PRETRAINING: _write(home / "texts.jsonl", texts),
        Task.KTO: _write(home / "labeled.jsonl", labeled),
        Task.CLASSIFICATION: _write(home / "classes.jsonl", classes),
        **dict.fromkeys((Task.DPO, Task.ORPO, Task.REWARD), pairs),
    }


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
