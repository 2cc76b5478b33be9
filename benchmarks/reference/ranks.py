"""One rank of `benchmarks.reference`. It runs cells as benchmarks/matrix/ranks.py does, and records what the reference needs.

That is the rows of each batch, and the randomly initialized weights. A rank is killed in the step that a file of the run names.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch

from benchmarks.matrix import ranks
from benchmarks.reference.plain_loop import pattern
from training.ranks.stopping import die_with_parent

_RANDOM = torch.Tensor.uniform_
INITIAL = "initial.safetensors"


def batches_file(folder: Path, rank: int) -> Path:
    return folder / f"batches-{rank}.jsonl"


def kill_file(folder: Path, rank: int) -> Path:
    """The file with the step in which the rank is killed."""
    return folder / f"kill-{rank}"


def main() -> None:
    die_with_parent()
    record()
    ranks.main()


def record() -> None:
    """Patches ReportingTrainer to record its first weights and its batches."""
    from training.trainer.reporting_trainer import ReportingTrainer

    begin, train = ReportingTrainer.__init__, ReportingTrainer.training_step

    def beginning(self: ReportingTrainer, **named: Any) -> None:
        _keep_weights(named["model"], named["context"].run_dir, named["context"].report.rank)
        begin(self, **named)

    def training(self: ReportingTrainer, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        step, folder, rank = self.state.global_step + 1, self.context.run_dir, self.context.report.rank
        line = {"process": os.getpid(), "step": step, "rows": _rows(inputs, whole=self.sequence_shares == 1)}
        if "completion_ids" in inputs:
            line["answers"] = _unpadded(inputs["completion_ids"], inputs["completion_mask"])
        with batches_file(folder, rank).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        _end_in(step, kill_file(folder, rank))
        return train(self, model, inputs, *arguments, **named)

    torch.Tensor.uniform_ = _uniform  # type: ignore[method-assign, assignment]
    ReportingTrainer.__init__ = beginning  # type: ignore[method-assign]
    ReportingTrainer.training_step = training  # type: ignore[method-assign]


def _uniform(tensor: torch.Tensor, low: float = 0.0, high: float = 1.0, **named: Any) -> torch.Tensor:
    """torch's random numbers; for NEFTune's noise, which alone has three dimensions, a pattern that the reference knows."""
    if tensor.dim() != 3:
        return _RANDOM(tensor, low, high, **named)
    return tensor.copy_(high * pattern(*tensor.shape[1:]))


def _end_in(step: int, file: Path) -> None:
    """Kills this process, once, if the file names the step."""
    if file.exists() and int(file.read_text()) == step:
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _rows(inputs: dict[str, Any], *, whole: bool) -> list[list[int]]:
    """Returns the tokens of each row of a batch without padding; of pairs, those with the chosen answers come first, of samples
    those of the prompts.

    Unless `whole`, the batch has only a part of each row. A batch of weight 0 stands for rows that do not train.
    """
    if "loss_weights" in inputs and not inputs["loss_weights"].any():
        return []
    if "prompt_ids" in inputs:
        return _unpadded(inputs["prompt_ids"], inputs["prompt_mask"])
    tokens = inputs["chosen_input_ids"] if "chosen_input_ids" in inputs else inputs["input_ids"]
    if whole and "position_ids" in inputs:  # a flat batch, in which each row begins at position 0
        starts = (inputs["position_ids"][0] == 0).nonzero().flatten().tolist()
        return [row.tolist() for row in tokens[0].tensor_split(starts[1:])]
    mask = inputs["chosen_attention_mask"] if "chosen_attention_mask" in inputs else inputs["attention_mask"]
    return _unpadded(tokens, mask)


def _unpadded(tokens: Any, mask: Any) -> list[list[int]]:
    return [row[selected].tolist() for row, selected in zip(tokens, mask.bool(), strict=True)]


def _keep_weights(model: Any, folder: Path, rank: int) -> None:
    """Saves the trainable weights of the first attempt. A collective under ZeRO-3, which shards them."""
    from contextlib import nullcontext

    from safetensors.torch import save_file

    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    whole: Any = nullcontext()
    if any(hasattr(weight, "ds_id") for weight in trained.values()):
        from deepspeed.runtime.zero import GatheredParameters

        whole = GatheredParameters(list(trained.values()))
    with whole:
        if rank == 0 and not (folder / INITIAL).exists():
            save_file(
                {name: weight.detach().clone().contiguous() for name, weight in trained.items()}, folder / INITIAL
            )


if __name__ == "__main__":
    main()
