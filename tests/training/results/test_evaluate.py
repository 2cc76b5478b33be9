"""Which weights an evaluation loads, and the classes of a classifier as answers."""

import pytest
from run_files import checkpoint

from training.config.choices import LoraInit
from training.config.run_config import RunConfig
from training.config.task import Task
from training.errors import UserError
from training.results.evaluate import check_installed, find_weights
from training.run_folder.paths import checkpoint_dir
from worker.settings import get_settings

CONFIG = RunConfig(model="m", data="d")


@pytest.fixture
def run_dir(home):
    """A run with a checkpoint of an adapter at step 20, one of full weights at step 40, and no result."""
    checkpoint("run", 40)
    folder = get_settings().runs_dir / "run"
    (checkpoint_dir(folder, 20)).mkdir()
    (checkpoint_dir(folder, 20) / "adapter_model.safetensors").write_bytes(b"x")
    from training.run_folder import checkpoints

    checkpoints.seal(checkpoint_dir(folder, 20))
    return folder


def refusal(run_dir, source, **settings):
    with pytest.raises(UserError) as failure:
        find_weights(run_dir, CONFIG.model_copy(update=settings), source)
    problem = failure.value.problem
    return f"{problem.message} {problem.fix}"


def test_the_result_a_checkpoint_and_the_base_are_found(run_dir):
    (run_dir / "adapter").mkdir()
    assert find_weights(run_dir, CONFIG, "result") == run_dir / "adapter"
    assert find_weights(run_dir, CONFIG, "checkpoint-20") == checkpoint_dir(run_dir, 20)
    assert find_weights(run_dir, CONFIG, "base") is None


def test_what_is_missing_or_damaged_is_named_with_what_exists(run_dir):
    known = "Give one of: checkpoint-40, checkpoint-20, base."
    assert refusal(run_dir, "result") == f"is not in the run's folder. {known}"
    assert refusal(run_dir, "checkpoint-5") == f"cannot be used: it does not exist. {known}"
    (checkpoint_dir(run_dir, 20) / "adapter_model.safetensors").write_bytes(b"y")
    assert "is damaged (its hash differs)" in refusal(run_dir, "checkpoint-20")
    (run_dir / "adapter").mkdir()
    (run_dir / "adapter" / "adapter_model.safetensors").write_bytes(b"cut")
    assert refusal(run_dir, "result").startswith("cannot be loaded: adapter_model.safetensors is truncated or damaged.")


def test_weights_that_cannot_be_loaded_alone_are_refused(run_dir):
    assert "in shards of the ranks" in refusal(run_dir, "checkpoint-40")
    for init in ("pissa", "pissa_niter_4", "olora", "loftq"):
        assert f"base weights that {init} changed" in refusal(run_dir, "checkpoint-20", lora_init=LoraInit(init))
    assert "gives scores to answers" in refusal(run_dir, "checkpoint-20", task=Task.REWARD)
    assert "no trained classes" in refusal(run_dir, "base", task=Task.CLASSIFICATION)


def test_without_lm_eval_its_tasks_are_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("training.results.evaluate.PACKAGE", "lm_eval_of_no_one")
    with pytest.raises(UserError, match="pip install lm-eval"):
        check_installed(["arc_easy"])
