"""The training program run in the test's own process, on one device: a second each, where a process of its own takes ten."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config import RunConfig
from training.events import Event, Finished, Metrics, Note, decode


@dataclass
class Ran:
    """A run that came to its end, and what it reported."""

    folder: Path
    events: list[Event]

    @property
    def summary(self) -> dict[str, Any]:
        return next(event.summary for event in self.events if isinstance(event, Finished))

    @property
    def notes(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Note)]

    def series(self, name: str) -> dict[int, float]:
        """A metric's values by step."""
        found = [event for event in self.events if isinstance(event, Metrics) and name in event.values]
        return {event.step: float(event.values[name] or 0) for event in found}


def run(folder: Path, model: Path, data: Path, **settings: Any) -> Ran:
    """Trains in `folder`; what goes wrong is raised."""
    import torch
    from accelerate.state import AcceleratorState, GradientState, PartialState

    from training.report import Report
    from training.stopping import StopSignal
    from training.train import train

    folder.mkdir(exist_ok=True)
    small = {"max_steps": 2, "micro_batch_size": 4, "eval_split": 8, "eval_steps": 0, "save_steps": 0, "max_length": 64}
    config = RunConfig.model_validate({"model": str(model), "data": str(data)} | small | settings)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "default"
            )  # the libraries warn of their own ways; the program's own runs do not stop at that
            train(config, folder, Report(folder, 0), StopSignal())
    finally:
        torch.set_num_threads(threads)
        for state in (AcceleratorState, PartialState, GradientState):
            state._reset_state()
    with (folder / "events.jsonl").open("rb") as lines:
        return Ran(folder, [event for line in lines if (event := decode(line))])
