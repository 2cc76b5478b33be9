"""Makes a causal language model that trains in seconds."""

import json
from collections.abc import Callable
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def make_model(
    folder: Path, *, template: bool = True, hidden_size: int = 64, layers: int = 2, tied: bool = False
) -> Path:
    """A random Llama (about 100,000 parameters) with a byte-level tokenizer, saved in `folder`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>", extra_special_tokens=SPECIAL[2:]
    )
    fast.chat_template = TEMPLATE if template else None
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def make_reward_model(folder: Path, labels: int = 1, *, make: Callable[[Path], object] = make_model) -> Path:
    """A random model of so many scores, with the tokenizer of the one that `make` makes."""
    import torch
    from transformers import AutoModelForSequenceClassification

    make(folder)
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=labels)
    model.score.weight.data.normal_(std=0.1)
    model.save_pretrained(folder)
    return folder


def make_data(file: Path, rows: int = 64) -> Path:
    """Writes rows of prompt and completion; each completion follows from the number in the prompt."""
    lines = [
        json.dumps({"prompt": f"count {n}: ", "completion": " ".join("abcdefghij"[int(d)] for d in str(n * 37))})
        for n in range(rows)
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
