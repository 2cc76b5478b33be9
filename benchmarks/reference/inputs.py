"""Models of about 50,000 parameters and data sets with rows of very different lengths, for benchmarks/reference/command.py."""

import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

from benchmarks.matrix.inputs import byte_tokenizer

_BEGIN, _ROLES = "<|begin|>", ["<|system|>", "<|user|>", "<|assistant|>"]
_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# The last answer has an empty thinking block before it, and every turn ends with a newline, as in Qwen3's template.
_THINKING = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_WORDS = ("a", "of", "stone", "river", "seldom", "night", "copper", "we", "lantern", "under", "forty-two", "go")
# With 8 rows per step, 24 rows end an epoch with a full step, 21 with a smaller one.
ROWS = {"even": 24, "uneven": 21, "held-out": 11}
Row = dict[str, Any]


def make_inputs(home: Path) -> None:
    """Writes models and data into the folder `home`."""
    _make_models(home)
    for name, make in _DATA.items():
        for number, (part, count) in enumerate(ROWS.items()):
            generator = random.Random(f"{name} {part}")
            rows = [make(100 * (number + 1) + row, generator) for row in range(count)]
            text = "".join(json.dumps(row) + "\n" for row in _with_gaps(rows, _WITHOUT_LOSS.get(name)))
            (home / f"{name}-{part}.jsonl").write_text(text, encoding="utf-8")


def _with_gaps(rows: list[Row], gap: Row | None) -> list[Row]:
    """Returns rows with `gap` after each third one and twice at the end, so that whole micro batches of a stream have no loss."""
    if gap is None:
        return rows
    return [row for number, own in enumerate(rows) for row in ([own, gap] if number % 3 == 0 else [own])] + [gap, gap]


def _text(generator: random.Random, least: int, most: int) -> str:
    """Returns words, mostly few and sometimes many, so that a mean over tokens differs much from a mean over rows."""
    count = min(most, least + int(generator.expovariate(0.25)))
    return " ".join(generator.choice(_WORDS) for _ in range(count))


def _answers(number: int, generator: random.Random) -> Row:
    return {"prompt": f"{number} {_text(generator, 1, 4)}: ", "completion": _text(generator, 1, 24)}


def _weighted(number: int, generator: random.Random) -> Row:
    return {**_answers(number, generator), "weight": generator.choice((0.5, 1.0, 3.0))}


def _chats(number: int, generator: random.Random) -> Row:
    turns = [{"role": "system", "content": f"Be {number}."}] if number % 3 == 0 else []
    for turn in range(1 + number % 3):
        turns += [
            {"role": "user", "content": f"{number}.{turn} {_text(generator, 1, 3)}?"},
            {"role": "assistant", "content": _text(generator, 1, 6)},
        ]
    return {"messages": turns}


def _texts(number: int, generator: random.Random) -> Row:
    return {"text": f"{number} {_text(generator, 1, 18)}"}


def _classes(number: int, generator: random.Random) -> Row:
    return {"text": f"{number} {_text(generator, 1, 12)}", "label": ("low", "middle", "high")[generator.randrange(3)]}


def _pairs(number: int, generator: random.Random) -> Row:
    """Returns short answers, since fp32 loses digits in large sums of log-probabilities."""
    answers = {"chosen": _text(generator, 1, 5), "rejected": _text(generator, 1, 5)}
    return {"prompt": f"{number} {_text(generator, 1, 3)}: ", **answers}


def _labelled(number: int, generator: random.Random) -> Row:
    row = _pairs(number, generator)
    return {"prompt": row["prompt"], "completion": row["chosen"], "label": generator.random() < 0.75}


_DATA: dict[str, Callable[[int, random.Random], Row]] = {
    "answers": _answers,
    "gaps": _answers,
    "weighted": _weighted,
    "chats": _chats,
    "texts": _texts,
    "classes": _classes,
    "pairs": _pairs,
    "labelled": _labelled,
}


# Rows of the data sets "gaps" and "weighted" of which no token carries loss: of one the prompt alone is longer than max_length.
_WITHOUT_LOSS: dict[str, Row] = {
    "gaps": {"prompt": 60 * "far ", "completion": "away"},
    "weighted": {"prompt": "no weight: ", "completion": "at all", "weight": 0.0},
}


def _make_models(home: Path) -> None:
    import torch
    import transformers as library

    causal, seq2seq = _tokenizers()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": causal.bos_token_id, "eos_token_id": 1, "pad_token_id": 0, "vocab_size": len(causal)}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.5}
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    heads = {"num_key_value_heads": 4, "head_dim": 8}
    t5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    bart = {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "dropout": 0.0,
        "forced_eos_token_id": None,
    }  # fmt: skip
    created = {
        "llama": (library.LlamaForCausalLM, library.LlamaConfig(**sizes, **ids), causal),
        "tied": (library.LlamaForCausalLM, library.LlamaConfig(**sizes, **ids, tie_word_embeddings=True), causal),
        "mixtral": (
            library.MixtralForCausalLM,
            library.MixtralConfig(**sizes, **ids, **experts, num_key_value_heads=4, output_router_logits=True),
            causal,
        ),
        "gemma2": (
            library.Gemma2ForCausalLM,
            library.Gemma2Config(**sizes, **ids, **heads, query_pre_attn_scalar=8, final_logit_softcapping=0.5),
            causal,
        ),
        "cohere": (library.CohereForCausalLM, library.CohereConfig(**sizes, **ids, logit_scale=3.0), causal),
        "granite": (library.GraniteForCausalLM, library.GraniteConfig(**sizes, **ids, logits_scaling=0.2), causal),
        "phi": (library.PhiForCausalLM, library.PhiConfig(**sizes, **ids), causal),
        "gpt2": (library.GPT2LMHeadModel, library.GPT2Config(**gpt2, **ids), causal),
        "t5": (library.T5ForConditionalGeneration, library.T5Config(**t5, **ids, decoder_start_token_id=0), seq2seq),
        "bart": (
            library.BartForConditionalGeneration,
            library.BartConfig(**bart, **ids, decoder_start_token_id=1),
            seq2seq,
        ),
    }
    for name, (kind, config, tokenizer) in created.items():
        torch.manual_seed(0)
        kind(config).save_pretrained(home / name)
        tokenizer.save_pretrained(home / name)
    for name in ("llama", "tied"):
        _make_adapter(home / name, home / f"{name}-adapter")
    copytree(home / "llama", home / "thinker")
    (home / "thinker" / "chat_template.jinja").write_text(_THINKING, encoding="utf-8")


def _make_adapter(model: Path, folder: Path) -> None:
    """Saves an adapter that changes the model, for runs that continue it. Its settings are those of a run of cells.py."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    settings = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], r=4, lora_alpha=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a name that PEFT still uses
        adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model), settings)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if ".lora_B." in name:
                weight.normal_(std=0.1)
    adapted.save_pretrained(folder)


def _tokenizers() -> tuple[Any, Any]:
    """Makes byte tokenizers: one adds a begin token to every text and has a chat template, the other adds an end token."""
    from tokenizers.processors import TemplateProcessing

    causal, seq2seq = byte_tokenizer(), byte_tokenizer()
    for tokenizer, added, form in ((causal, _BEGIN, f"{_BEGIN} $A"), (seq2seq, "<|end|>", "$A <|end|>")):
        tokenizer.add_special_tokens({"bos_token": _BEGIN, "additional_special_tokens": _ROLES})
        known = [(added, tokenizer.convert_tokens_to_ids(added))]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=form, special_tokens=known)
    causal.chat_template = _TEMPLATE
    return causal, seq2seq
