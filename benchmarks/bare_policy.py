"""The baseline of benchmarks/policy_step.py: task grpo as a script on trl's GRPOTrainer, without Lathe.

`python -m benchmarks.bare_policy settings.json` prints a JSON line for each optimizer step: its time, the seconds of generation and
scoring, and the mean length of its samples.
"""

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer


class Timed(GRPOTrainer):
    """trl's trainer, which adds up the seconds of its phases."""

    generate_seconds = score_seconds = 0.0

    def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        answer = super()._generate_single_turn(*arguments, **named)  # type: ignore[no-untyped-call]
        self.generate_seconds += time.perf_counter() - began
        return answer

    def _calculate_rewards(self, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        rewards = super()._calculate_rewards(*arguments, **named)
        self.score_seconds += time.perf_counter() - began
        return rewards


class Stamp(TrainerCallback):  # type: ignore[misc]
    """Prints each step when its loss is logged."""

    trainer: Timed

    def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "loss" in logs:
            trainer = self.trainer
            line = {
                "step": state.global_step,
                "time": time.time(),
                "cpu": time.process_time(),
                "tokens": logs["completions/mean_length"],
            }
            line |= {"generate_seconds": trainer.generate_seconds, "score_seconds": trainer.score_seconds}
            trainer.generate_seconds = trainer.score_seconds = 0.0
            print(json.dumps(line), flush=True)


def rows(file: Path, count: int) -> list[dict[str, Any]]:
    """Returns the prompts of a file of conversations, with their last answers."""
    lines = file.read_text(encoding="utf-8").splitlines()[:count]
    turns = [json.loads(line)["messages"] for line in lines]
    return [{"prompt": messages[:-1], "expected": messages[-1]["content"]} for messages in turns]


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    set_seed(settings["seed"])
    reward = runpy.run_path(settings["reward_code"])[settings["rewards"]]

    def scored(prompts: list[Any], completions: list[Any], expected: list[str], **_: Any) -> list[float]:
        answers = [completion[0]["content"].strip() for completion in completions]
        texts = [prompt[-1]["content"] for prompt in prompts]
        return [float(reward(*sample)) for sample in zip(texts, answers, expected, strict=True)]

    model = AutoModelForCausalLM.from_pretrained(settings["model"])
    adapter = None
    if settings["method"] == "lora":
        from peft import LoraConfig

        adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    stamp = Stamp()
    stamp.trainer = Timed(
        model=model,
        reward_funcs=scored,
        args=GRPOConfig(
            output_dir=settings["output"], max_steps=settings["max_steps"], seed=settings["seed"], report_to=[],
            per_device_train_batch_size=settings["micro_batch_size"], num_generations=settings["num_generations"],
            gradient_accumulation_steps=settings["gradient_accumulation_steps"], epsilon=0.2, epsilon_high=0.28,
            max_completion_length=settings["max_completion_length"], temperature=1.0, beta=0.0, loss_type="dapo",
            learning_rate=settings["learning_rate"], lr_scheduler_type="constant", logging_steps=1, save_strategy="no",
            disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False, dataloader_pin_memory=False,
        ),
        train_dataset=Dataset.from_list(rows(Path(settings["data"]), settings["prompts"])),
        processing_class=AutoTokenizer.from_pretrained(settings["model"]),
        peft_config=adapter,
        callbacks=[stamp],
    )  # fmt: skip
    stamp.trainer.train()


if __name__ == "__main__":
    main()
