"""A new adapter begins as its reference: the first loss of DPO is ln 2, and KL is 0, whatever else is set."""

import math
from pathlib import Path
from typing import Any

import pytest
from trained import data, model
from trainer_process import train_here

from training.errors import UserError
from training.trainer.reporting_trainer import ReportingTrainer

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]  # of trl
BETA = 0.3
SETTINGS = {
    "max_steps": 1, "eval_steps": 0, "eval_split": 0, "precision": "fp32", "warmup": 0, "packing": "none", "beta": BETA,
    "method": "lora",
}  # fmt: skip


@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_noise_of_neftune_does_not_reach_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    logged: list[dict[str, float]] = []
    log = ReportingTrainer.log

    def recorded(self: Any, logs: dict[str, float], *arguments: Any) -> None:
        log(self, logs, *arguments)
        logged.append(logs)

    monkeypatch.setattr(ReportingTrainer, "log", recorded)
    of_reference, of_model = [], []
    for alpha in (None, 10):
        logged.clear()
        settings = SETTINGS | {"task": task, "neftune_noise_alpha": alpha}
        run = train_here(tmp_path / f"{alpha}", model("plain_llama"), data(task), **settings)
        (logs,) = [logs for logs in logged if "logps/chosen" in logs]
        of_model.append(logs["logps/chosen"])
        of_reference.append(logs["logps/chosen"] - logs["rewards/chosen"] / BETA)
        if alpha is None:
            assert run.losses()[1] == pytest.approx({"dpo": math.log(2), "kto": 0.5}[task], abs=1e-6)
    assert of_reference[1] == pytest.approx(of_reference[0], rel=1e-6)
    assert of_model[1] != pytest.approx(of_model[0], rel=1e-3)


def test_a_run_whose_reference_differs_from_its_new_adapter_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.trainer import trl_loss

    monkeypatch.setattr(trl_loss, "add_noise_with_gradient_only", lambda _: None)
    settings = SETTINGS | {"task": "dpo", "neftune_noise_alpha": 10}
    with pytest.raises(UserError, match=r"task .given: 'dpo'.: compares with another reference"):
        train_here(tmp_path / "run", model("plain_llama"), data("dpo"), **settings)
