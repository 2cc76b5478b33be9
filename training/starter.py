"""Builds static/starter/ from nothing: tokenizer, pretrained model, sample data.

    python -m training.starter --out static/starter

It downloads nothing. The sample data and the tokenizer come out the same on every machine; the weights differ in their last digits
between kinds of processor.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from training.starter_chat import chat
from training.starter_orders import Row, rows
from training.starter_text import plain_text
from training.starter_words import generator

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SEED = 1
STEPS = 2600


def write_rows(path: Path, data: list[Row]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in data), encoding="utf-8")


def write_data(out: Path, seed: int) -> None:
    """Writes train.jsonl and heldout.jsonl."""
    train, heldout = rows(seed)
    write_rows(out / "train.jsonl", train)
    write_rows(out / "heldout.jsonl", heldout)


def write_model(out: Path, *, steps: int, seed: int, threads: int) -> None:
    """Writes the tokenizer and the pretrained model: config.json, generation_config.json, model.safetensors."""
    import torch

    from training.starter_model import build_model, pretrain

    torch.set_num_threads(threads)
    tokenizer = make_tokenizer(seed)
    model = build_model(tokenizer, seed)
    _say(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    pretrain(model, tokenizer, steps=steps, seed=seed, say=_say)
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)


def make_tokenizer(seed: int) -> "PreTrainedTokenizerFast":
    """The tokenizer for text of this seed."""
    from training.starter_tokenizer import train_tokenizer

    return train_tokenizer(_tokenizer_texts(seed))


def _tokenizer_texts(seed: int, documents: int = 20_000) -> Iterator[str]:
    rng = generator(f"tokenizer {seed}")
    for _ in range(documents // 4):
        yield plain_text(rng)
        for _ in range(3):
            yield "\n".join(message["content"] for message in chat(rng))


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.starter", description="Builds the starter model and its sample data.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to, for example static/starter")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of text, weights and sample data (default %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="pretraining steps (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default %(default)s)")
    parser.add_argument("--data-only", action="store_true", help="write the sample data only")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_data(options.out, options.seed)
    if not options.data_only:
        write_model(options.out, steps=options.steps, seed=options.seed, threads=options.threads)


if __name__ == "__main__":
    main()
