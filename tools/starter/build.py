"""Writes the tokenizer, the model and the sample data of static/starter/."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tools.starter.chats import Message, chat
from tools.starter.orders import any_order, letter
from tools.starter.words import generator

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SEED = 1
STEPS = 1000
TRAIN_ROWS = 1200
HELDOUT_ROWS = 160
Row = dict[str, list[Message]]


def rows(seed: int) -> tuple[list[Row], list[Row]]:
    """Training rows and held-out rows: an order as the prompt, its JSON as the answer. Every order is different."""
    rng = generator(f"orders {seed}")
    by_answer: dict[str, Row] = {}
    while len(by_answer) < TRAIN_ROWS + HELDOUT_ROWS:
        order = any_order(rng)
        text = f"Write this order as JSON: {letter(rng, order)}"
        answer = order.as_json()
        by_answer[answer] = {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]}
    all_rows = list(by_answer.values())
    return all_rows[:TRAIN_ROWS], all_rows[TRAIN_ROWS:]


def write_data(out: Path, seed: int) -> None:
    """Writes train.jsonl and heldout.jsonl."""
    for name, part in zip(("train.jsonl", "heldout.jsonl"), rows(seed), strict=True):
        (out / name).write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")


def write_model(out: Path, *, steps: int, seed: int) -> None:
    """Writes the tokenizer and the pretrained model: config.json, generation_config.json, model.safetensors."""
    from tools.starter.pretraining import build_model, pretrain

    tokenizer = make_tokenizer(seed)
    model = build_model(tokenizer, seed)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    pretrain(model, tokenizer, steps=steps, seed=seed, say=lambda line: print(line, flush=True))
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)


def make_tokenizer(seed: int, chats: int = 20_000) -> "PreTrainedTokenizerFast":
    """The tokenizer, trained on chats generated with this seed."""
    from tools.starter.tokenizer import train_tokenizer

    rng = generator(f"tokenizer {seed}")
    return train_tokenizer("\n".join(message["content"] for message in chat(rng)) for _ in range(chats))
