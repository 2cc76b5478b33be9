"""A contender of benchmarks/throughput.py: the same training with transformers' Trainer or trl's SFTTrainer, without Lathe.

`python -m benchmarks.bare_throughput NAME settings.json` prints a JSON line for each optimizer step (its time, loss, and tokens
without padding) and one with the process's peak memory and the loss of the held-out rows.
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments, set_seed

Row = dict[str, list[int]]
IGNORED = -100


class Stamp(TrainerCallback):  # type: ignore[misc]
    """Prints each step when its loss is logged, and stops training after `enough` tokens."""

    def __init__(self, enough: int) -> None:
        self.tokens, self._enough = 0, enough

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = self.tokens >= self._enough

    def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "loss" in logs:
            say(
                step=state.global_step,
                time=time.time(),
                cpu=time.process_time(),
                loss=float(logs["loss"]),
                tokens=self.tokens,
            )


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def counting(trainer: type[Trainer], stamp: Stamp) -> type[Trainer]:
    """Returns a subclass of `trainer` that counts the tokens it trains on, without padding."""

    class Counting(trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *arguments: Any) -> Any:
            mask = inputs.get("attention_mask")
            stamp.tokens += int(inputs["input_ids"].numel() if mask is None else mask.sum())
            return super().training_step(model, inputs, *arguments)

    return Counting


def load(settings: dict[str, Any]) -> Any:
    model = AutoModelForCausalLM.from_pretrained(settings["model"])
    model.config.use_cache = False
    if settings["method"] == "lora":
        from peft import LoraConfig, get_peft_model

        return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, task_type="CAUSAL_LM"))
    return model


def shared(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments that all contenders share."""
    return {
        "output_dir": settings["output"],
        "max_steps": 10 * settings["steps"],  # Stamp stops after the same number of tokens as the others
        "learning_rate": settings["learning_rate"],
        "lr_scheduler_type": "constant",
        "seed": settings["seed"],
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": torch.cuda.is_available(),
    }


def hugging_face(name: str, settings: dict[str, Any], rows: list[Row], pad: int, stamp: Stamp) -> Trainer:
    order = "group_by_length" if name == "trainer_grouped" else "sequential"
    arguments = TrainingArguments(
        **shared(settings),
        train_sampling_strategy=order,
        per_device_train_batch_size=settings["rows"],
        remove_unused_columns=False,
    )
    return counting(Trainer, stamp)(
        model=load(settings),
        args=arguments,
        train_dataset=rows,
        data_collator=lambda batch: collate(batch, pad),
        callbacks=[stamp],
    )


def collate(batch: list[Row], pad: int) -> dict[str, torch.Tensor]:
    length = max(len(row["input_ids"]) for row in batch)

    def filled(name: str, value: int) -> torch.Tensor:
        return torch.tensor([row[name] + [value] * (length - len(row[name])) for row in batch])

    mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (length - len(row["input_ids"])) for row in batch])
    return {"input_ids": filled("input_ids", pad), "attention_mask": mask, "labels": filled("labels", IGNORED)}


def trl(name: str, settings: dict[str, Any], rows: list[Row], stamp: Stamp) -> Trainer:
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    marked = [
        {"input_ids": row["input_ids"], "completion_mask": [int(label != IGNORED) for label in row["labels"]]}
        for row in rows
    ]
    packing = {"packing": True, "packing_strategy": "bfd", "max_length": settings["pack"]}
    packed = name == "trl_packed"
    arguments = SFTConfig(
        **shared(settings),
        train_sampling_strategy="random" if packed else "sequential",
        **(packing if packed else {"max_length": settings["max_length"]}),
        per_device_train_batch_size=1 if packed else settings["rows"],
        completion_only_loss=True,
        gradient_checkpointing=False,  # trl's default is True, which trades speed for memory
    )
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return counting(SFTTrainer, stamp)(
        model=load(settings),
        args=arguments,
        train_dataset=Dataset.from_list(marked),
        processing_class=tokenizer,
        callbacks=[stamp],
    )


def held_out_loss(model: Any, rows: list[Row]) -> float:
    """Returns the mean loss over all tokens with loss, computed row by row."""
    total = count = 0.0
    model.eval()
    for row in rows:
        ids, labels = (torch.tensor([row[name]], device=model.device) for name in ("input_ids", "labels"))
        carried = int((labels[:, 1:] != IGNORED).sum())
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=labels).loss) * carried
        count += carried
    return total / count


def main() -> None:
    name, settings = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    set_seed(settings["seed"])
    rows, held_out = (json.loads(Path(settings[part]).read_text()) for part in ("train_rows", "held_out_rows"))
    stamp = Stamp(settings["tokens"])
    if name.startswith("trl"):
        trainer = trl(name, settings, rows, stamp)
    else:
        trainer = hugging_face(name, settings, rows, settings["pad"], stamp)
    trainer.train()
    peak = (
        torch.cuda.max_memory_allocated()
        if torch.cuda.is_available()
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    say(peak_bytes=peak, eval_loss=held_out_loss(trainer.model, held_out))


if __name__ == "__main__":
    main()
