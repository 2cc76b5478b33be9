"""A user's DeepSpeed JSON: parsed leniently, checked key by key, resolved, and compared with the settings."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.references import deepspeed as deepspeed_reference
from training.config.choices import Precision
from training.config.fields import ConfigError, parse
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.config.sharding import deepspeed_config
from training.deepspeed_file.check import SENTENCES, checked, keys
from training.rules import check
from training.rules.conflict import Conflict

FOUR_A100 = Machine("cuda", 4, ["A100"] * 4, [80 << 30] * 4)

BY_HAND = """\
// Our usual one
{
    "train_micro_batch_size_per_gpu": "auto",  # as asked for
    "gradient_clipping": "auto",
    "steps_per_print": 100
    "zero_optimization": {
        "stage": 2, /* no parameters */
        "reduce_bucket_size": "auto",
        "allgather_bucket_size": 5e8,
    },
}
"""


def config(own: Any = None, **values: Any) -> RunConfig:
    return parse({"model": "m", "data": "d", "strategy": "zero2", "num_processes": 2, "deepspeed_config": own} | values)


def refusal(own: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        config(own)
    (problem,) = raised.value.problems
    assert problem.field == "deepspeed_config"
    return problem.message


def conflicts(own: dict[str, Any], **values: Any) -> list[Conflict]:
    report = check(config(own, **values), FOUR_A100)
    return [item for item in report if "deepspeed_config" in item.settings]


def test_comments_and_extra_or_missing_commas_are_accepted() -> None:
    created = deepspeed_config(config(BY_HAND, micro_batch_size=3), 64, Precision.BF16)
    assert created is not None and '"auto"' not in json.dumps(created)
    assert created["train_micro_batch_size_per_gpu"] == 3
    assert created["steps_per_print"] == 100
    assert created["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 64 * 64, "allgather_bucket_size": 5e8}


def test_missing_keys_that_training_needs_come_from_the_settings() -> None:
    created = deepspeed_config(config({"zero_optimization": {"stage": 2}}, max_grad_norm=0.5), 64, Precision.BF16)
    assert created is not None
    assert created["bf16"] == {"enabled": True} and created["gradient_clipping"] == 0.5
    assert created["train_batch_size"] == 8 and created["zero_allow_untested_optimizer"]


def test_a_scheduler_gets_its_steps_from_max_steps() -> None:
    own = {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto", "total_num_steps": "auto"}}}
    created = deepspeed_config(config(own, strategy="zero0", max_steps=50, warmup=0.1), 64, Precision.FP32)
    assert created is not None
    assert created["scheduler"]["params"] == {"warmup_num_steps": 5, "total_num_steps": 50}


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            '{\n"zero_optimization": {\n"stge": 2}}',
            'line 3: "stge" is not a DeepSpeed key in zero_optimization. Did you mean stage?',
        ),
        ('{"stage": 2}', "It belongs in zero_optimization."),
        ('{"fp16": {},\n\n"fp16": {}}', 'line 3: "fp16" appears twice, first in line 1'),
        ('{"zero_optimization": {"stage": [0|1|2|3]}}', "write one of 0, 1, 2, 3"),
        ('{"zero_optimization": {"offload_param": {"device": "[cpu|nvme]"}}}', "write one of cpu, nvme"),
        ('{"zero_optimization": {"stage": 4}}', "must be one of 0, 1, 2, 3"),
        ('{"zero_optimization": {"reduce_bucket_size": 0}}', "must be an integer, above 0"),
        ('{"bf16": {"enabled": "true"}}', 'is "true", but must be true or false'),
        ('{"bf16": {"enabled": yes}}', "write text in double quotes"),
        ('{"steps_per_print": "auto"}', 'cannot be "auto"'),
        ('{"zero_optimization": {"cpu_offload_use_pin_memory": true}}', "offload_param or offload_optimizer instead"),
        ('{"zero_optimizaton": {}}', "Did you mean zero_optimization?"),
        ('{"sparse_attention": {}}', "was removed from DeepSpeed"),
        ('{"train_batch_size": 8', "a closing } is missing"),
        ('{"train_batch_size" 8}', "a colon is missing"),
        ("[1, 2]", "must start with {"),
        ("{" * 5000, "line 1"),
        ('{"a":' * 5000, "is nested too deeply"),
    ],
)
def test_problems_are_reported_with_their_line(own: str, message: str) -> None:
    assert message in refusal(own)


@pytest.mark.parametrize(
    ("own", "values"),
    [
        ({"zero_optimization": {"stage": 3}}, {}),
        ({"zero_optimization": {"stage": 2}}, {"strategy": "ddp"}),
        ({"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 7}, {}),
        ({"zero_optimization": {"stage": 2}, "train_batch_size": 24}, {}),
        ({"zero_optimization": {"stage": 2}, "train_batch_size": 7}, {}),
        ({"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 2}, {}),
        ({"zero_optimization": {"stage": 2}, "gradient_clipping": 0.3}, {}),
        ({"zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}, {}),
        ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": False}}, {}),
        ({"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}, {}),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, {}),
        (
            {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": False}},
            {"strategy": "zero3"},
        ),
    ],
)
def test_a_key_that_contradicts_a_setting_is_reported_with_a_working_fix(
    own: dict[str, Any], values: dict[str, Any]
) -> None:
    (conflict,) = conflicts(own, **values)
    assert conflict.blocking and conflict.changes
    changed = values | conflict.changes
    assert not conflicts(changed.pop("deepspeed_config", own), **changed)


def test_a_file_with_auto_values_has_no_contradictions() -> None:
    assert not conflicts(
        {"zero_optimization": {"stage": "auto"}, "bf16": {"enabled": "auto"}, "train_batch_size": "auto"}
    )


def test_every_description_belongs_to_a_key_and_the_page_is_up_to_date() -> None:
    assert set(SENTENCES) <= set(keys())
    assert deepspeed_reference.TARGET.read_text(encoding="utf-8") == deepspeed_reference.render()


@pytest.mark.train
def test_the_keys_are_those_of_the_installed_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    import deepspeed

    from tools.references import deepspeed_catalogue

    if deepspeed.__version__ != json.loads(deepspeed_catalogue.TARGET.read_text())["deepspeed"]:
        pytest.skip("another DeepSpeed than the keys are from")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert deepspeed_catalogue.TARGET.read_text(encoding="utf-8") == deepspeed_catalogue.render()


def test_a_file_can_be_given_by_path(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(BY_HAND)
    created = deepspeed_config(config(str(file)), 64, Precision.FP32)
    assert created is not None and created["steps_per_print"] == 100


def test_other_names_that_deepspeed_accepts_become_the_usual_ones():
    given = {
        "stage": 3,
        "max_live_parameters": 5,
        "stage3_gather_fp16_weights_on_model_save": True,
        "cpu_offload": True,
        "cpu_offload_param": False,
    }
    assert json.loads(checked(json.dumps({"zero_optimization": given})))["zero_optimization"] == {
        "stage": 3,
        "stage3_max_live_parameters": 5,
        "stage3_gather_16bit_weights_on_model_save": True,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "none"},
    }


def test_what_deepspeed_ignores_is_accepted():
    text = '{"_comment": "for 8 GPUs", "comment": "old", "my_notes": {"a": 1}, "zero_optimization": {"stage": 2}}'
    assert json.loads(checked(text))["my_notes"] == {"a": 1}
