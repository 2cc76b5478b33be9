"""One rank of benchmarks/reference.py: it takes runs as benchmarks/matrix_ranks.py does, and keeps beside each what the
reference cannot know: which rows came in which batch, and the weights that were drawn at random when the run began."""

import json
from pathlib import Path
from typing import Any

from benchmarks import matrix_ranks
from training.stopping import die_with_parent

INITIAL = "initial.safetensors"


def batches_file(folder: Path, rank: int) -> Path:
    return folder / f"batches-{rank}.jsonl"


def main() -> None:
    die_with_parent()
    record()
    matrix_ranks.main()


def record() -> None:
    """From now on every trainer of this process writes down its first weights and its batches."""
    from training.reporting import Reporting

    begin, train = Reporting.__init__, Reporting.training_step

    def beginning(self: Reporting, **named: Any) -> None:
        _keep_weights(named["model"], named["watch"].run_dir, named["watch"].report.rank)
        begin(self, **named)

    def training(self: Reporting, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        line = {"step": self.state.global_step + 1, "rows": _rows(inputs)}
        with batches_file(self.watch.run_dir, self.watch.report.rank).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return train(self, model, inputs, *arguments, **named)

    Reporting.__init__ = beginning  # type: ignore[method-assign]
    Reporting.training_step = training  # type: ignore[method-assign]


def _rows(inputs: dict[str, Any]) -> list[list[int]]:
    """The tokens of each row of a batch, without padding; of a pair those of the chosen answer come first."""
    tokens = inputs["chosen_input_ids"] if "chosen_input_ids" in inputs else inputs["input_ids"]
    if "position_ids" in inputs:  # rows end to end, each beginning at position 0
        starts = (inputs["position_ids"][0] == 0).nonzero().flatten().tolist()
        return [row.tolist() for row in tokens[0].tensor_split(starts[1:])]
    mask = inputs["chosen_attention_mask"] if "chosen_attention_mask" in inputs else inputs["attention_mask"]
    return [row[kept].tolist() for row, kept in zip(tokens, mask.bool(), strict=True)]


def _keep_weights(model: Any, folder: Path, rank: int) -> None:
    """Writes the weights that train. A collective under ZeRO-3, which holds a part of each on every rank."""
    from contextlib import nullcontext

    from safetensors.torch import save_file

    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    whole: Any = nullcontext()
    if any(hasattr(weight, "ds_id") for weight in trained.values()):
        from deepspeed.runtime.zero import GatheredParameters

        whole = GatheredParameters(list(trained.values()))
    with whole:
        if rank == 0:
            save_file(
                {name: weight.detach().clone().contiguous() for name, weight in trained.items()}, folder / INITIAL
            )


if __name__ == "__main__":
    main()
