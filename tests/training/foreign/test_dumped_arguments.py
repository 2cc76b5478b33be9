"""Arguments as the installed transformers and trl dump them: every key has an answer, and the task is recognized."""

import json
import warnings

import pytest

from training.foreign.entries import Outcome
from training.foreign.translate import import_text

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]
TASKS = {
    "SFTConfig": "sft",
    "DPOConfig": "dpo",
    "KTOConfig": "kto",
    "RewardConfig": "reward",
    "TrainingArguments": "sft",
}


def dumped(name: str, **changes: object) -> str:
    import transformers
    import trl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = getattr(trl, name, None) or getattr(transformers, name)
        return str(arguments(output_dir="out", bf16=False, **changes).to_json_string())


@pytest.mark.parametrize("name", TASKS)
def test_every_key_at_its_default_has_an_answer(name: str) -> None:
    result = import_text(dumped(name), None)
    assert [(one.key, one.value) for one in result.entries if one.outcome is Outcome.UNSUPPORTED] == []
    assert result.config().task == TASKS[name]


def test_changed_arguments_become_settings() -> None:
    changes = {
        "learning_rate": 3e-5,
        "per_device_train_batch_size": 2,
        "max_length": 512,
        "loss_type": ["hinge"],
        "beta": 0.3,
    }
    config = import_text(dumped("DPOConfig", **changes), None).config()
    assert (config.learning_rate, config.micro_batch_size, config.max_length) == (3e-5, 2, 512)
    assert (config.task, config.dpo_loss, config.beta) == ("dpo", "hinge", 0.3)


def test_a_dump_is_recognized_without_a_model() -> None:
    values = json.loads(dumped("TrainingArguments"))
    assert "model_name_or_path" not in values
    assert import_text(json.dumps(values), None).missing == ["model", "data"]
