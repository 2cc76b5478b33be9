"""The baseline of benchmarks/overhead.py: the same training as a plain script, without Lathe.

Run under `accelerate launch`; prints the wall-clock time of each optimizer step as JSON lines.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments, set_seed


class Stamp(TrainerCallback):  # type: ignore[misc]
    """Prints the time at which each step's loss is logged."""

    def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "loss" in logs:
            print(json.dumps({"step": state.global_step, "time": time.time(), "loss": logs["loss"]}), flush=True)


def rows(file: Path, tokenizer: Any) -> list[dict[str, list[int]]]:
    """Returns each conversation as tokens with the loss on its last message."""
    tokenized = []
    for line in file.read_text().splitlines():
        messages = json.loads(line)["messages"]
        prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        masked = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        tokenized.append({"input_ids": ids, "labels": [-100] * masked + ids[masked:]})
    return tokenized


def collate(batch: list[dict[str, list[int]]], pad: int) -> dict[str, torch.Tensor]:
    length = -(-max(len(row["input_ids"]) for row in batch) // 8) * 8
    padded = {"input_ids": [], "attention_mask": [], "labels": []}  # type: dict[str, list[list[int]]]
    for row in batch:
        missing = length - len(row["input_ids"])
        padded["input_ids"].append(row["input_ids"] + [pad] * missing)
        padded["attention_mask"].append([1] * len(row["input_ids"]) + [0] * missing)
        padded["labels"].append(row["labels"] + [-100] * missing)
    return {name: torch.tensor(values) for name, values in padded.items()}


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    set_seed(settings["seed"])
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    train = rows(Path(settings["data"]), tokenizer)
    model = AutoModelForCausalLM.from_pretrained(settings["model"])
    model.config.use_cache = False
    model = get_peft_model(
        model,
        LoraConfig(
            r=settings["lora_r"],
            lora_alpha=settings["lora_alpha"],
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )
    arguments = TrainingArguments(
        output_dir=settings["output"],
        max_steps=settings["max_steps"],
        per_device_train_batch_size=settings["micro_batch_size"],
        learning_rate=settings["learning_rate"],
        seed=settings["seed"],
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        use_cpu=True,
    )
    pad = tokenizer.pad_token_id
    Trainer(
        model=model,
        args=arguments,
        train_dataset=train,
        data_collator=lambda batch: collate(batch, pad),
        callbacks=[Stamp()],
    ).train()


if __name__ == "__main__":
    main()
