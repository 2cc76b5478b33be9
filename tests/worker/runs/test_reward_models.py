"""A run that names a reward model is refused before the queue if that cannot score, and finds it again when it starts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny import make_data, make_model

from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.rewards.rewards import reward_models
from training.run_folder.record import shared
from worker import celery_app
from worker.forecasts.shapes import of_run
from worker.runs import checks, submit
from worker.runs.settle import resolve, settle
from worker.settings import get_settings
from worker.store import database
from worker.store.tables import Run

HEAD = {"architectures": ["LlamaForSequenceClassification"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama")


def scoring(folder: Path, model: Path, labels: int) -> Path:
    """A folder whose config.json is that of a model with so many labels."""
    shutil.copytree(model, folder)
    values = json.loads((folder / "config.json").read_text()) | HEAD
    values["id2label"] = {str(label): f"LABEL_{label}" for label in range(labels)}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def named(**options: Any) -> str:
    return json.dumps([{"reward": "model", **options}, {"reward": "exact_match", "weight": 0.5}])


def test_a_reward_model_is_a_folder_or_a_run_with_a_result(
    home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(celery_app, "notify", lambda _: True)
    data = str(make_data(tmp_path / "rows.jsonl", rows=10))
    first = submit.submit(RunConfig(model=str(model), data=data))
    given = {
        "model": str(model),
        "data": data,
        "task": "grpo",
        "num_generations": 4,
        "micro_batch_size": 4,
        "method": "lora",
    }

    def refused(**options: Any) -> str:
        asked = RunConfig.model_validate(given | {"rewards": named(**options)})
        [problem] = checks.problems(settle(asked))
        assert problem.field == "rewards" and problem.fix, problem
        return str(problem)

    assert "has no result on this machine" in refused(run=first.id[:9]) and "Wait until" in refused(run=first.id)
    folder = scoring(get_settings().runs_dir / first.id / "model", model, 1)
    (folder.parent / "config.json").write_text("{}")
    for options, words in (
        ({"model": str(model)}, "its architecture is LlamaForCausalLM"),
        ({"model": str(scoring(tmp_path / "classes", model, 3))}, "it has 3 labels"),
        ({"model": str(tmp_path / "nothing")}, "is no folder on this machine"),
        ({"model": "a" * 300}, "is no folder on this machine"),
        ({"model": "~nobody-of-that-name"}, "is no folder on this machine"),
        ({"model": str(tmp_path)}, "config.json"),
        ({"run": "0" * 12}, "is no run"),
        ({"run": "nothing"}, "is no run"),
    ):
        assert words in refused(**options)
    second = submit.submit(RunConfig.model_validate(given | {"rewards": named(run=first.id[:9])}))
    assert [one.run for one in reward_models(second.config["rewards"])] == [first.id]
    resolved = resolve(second.used)
    assert [one.model for one in reward_models(resolved.rewards)] == [str(folder)]
    assert json.loads(shared(resolved).rewards) == json.loads(second.config["rewards"])
    shape = of_run(settle(second.used))
    ((scores, quantization),) = shape.reward_models
    assert quantization == "none" and scores.head == 0 and scores.layers == shape.layers

    with database.write() as session:
        session.delete(session.get(Run, first.id))
    with pytest.raises(ConfigError, match="is no run"):
        resolve(second.used)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs either run or model"),
        ({"run": "a", "model": "b"}, "needs either run or model"),
        ({"run": "a", "quantization": "3bit"}, "option quantization"),
        ({"run": "a", "max_length": 0}, "option max_length"),
        ({"url": "a", "run": "b"}, "option url"),
    ],
)
def test_wrong_options_are_refused_with_the_form(home: Path, model: Path, options: dict[str, Any], words: str) -> None:
    config = RunConfig(model=str(model), data="d", task="grpo", rewards=named(**options))
    (problem,) = [one for one in checks.conflicts(settle(config)) if one.field == "rewards"]
    assert words in problem.message and '"run": "ID"' in problem.fix
