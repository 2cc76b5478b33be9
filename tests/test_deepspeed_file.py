"""A DeepSpeed JSON of a person's own: read as people write it, checked key by key, resolved, and held against the settings."""

import json
from pathlib import Path
from typing import Any

import pytest

from training import deepspeed_reference
from training.config import Precision, RunConfig
from training.deepspeed_keys import keys
from training.deepspeed_words import SENTENCES
from training.fields import ConfigError, parse
from training.rules import Conflict, Machine, check
from training.zero import deepspeed_config

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
    found = check(config(own, **values), FOUR_A100)
    return [one for one in found if "deepspeed_config" in one.settings]


def test_comments_and_commas_of_a_file_written_by_hand_do_no_harm() -> None:
    made = deepspeed_config(config(BY_HAND, micro_batch_size=3), 64, Precision.BF16)
    assert made is not None and '"auto"' not in json.dumps(made)
    assert made["train_micro_batch_size_per_gpu"] == 3
    assert made["steps_per_print"] == 100
    assert made["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 64 * 64, "allgather_bucket_size": 5e8}


def test_what_the_file_leaves_out_and_training_needs_follows_the_settings() -> None:
    made = deepspeed_config(config({"zero_optimization": {"stage": 2}}, max_grad_norm=0.5), 64, Precision.BF16)
    assert made is not None
    assert made["bf16"] == {"enabled": True} and made["gradient_clipping"] == 0.5
    assert made["train_batch_size"] == 8 and made["zero_allow_untested_optimizer"]


def test_steps_of_a_scheduler_are_known_where_max_steps_is_set() -> None:
    own = {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto", "total_num_steps": "auto"}}}
    made = deepspeed_config(config(own, strategy="zero0", max_steps=50, warmup=0.1), 64, Precision.FP32)
    assert made is not None
    assert made["scheduler"]["params"] == {"warmup_num_steps": 5, "total_num_steps": 50}


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (
            '{\n"zero_optimization": {\n"stge": 2}}',
            'line 3: "stge" is no key of DeepSpeed in zero_optimization. Did you mean stage?',
        ),
        ('{"stage": 2}', "It belongs in zero_optimization."),
        ('{"fp16": {},\n\n"fp16": {}}', 'line 3: "fp16" is given twice, first in line 1'),
        ('{"zero_optimization": {"stage": [0|1|2|3]}}', "write one of 0, 1, 2, 3"),
        ('{"zero_optimization": {"offload_param": {"device": "[cpu|nvme]"}}}', "write one of cpu, nvme"),
        ('{"zero_optimization": {"stage": 4}}', "takes one of 0, 1, 2, 3"),
        ('{"zero_optimization": {"reduce_bucket_size": 0}}', "takes a whole number, above 0"),
        ('{"bf16": {"enabled": "true"}}', 'is "true", and takes true or false'),
        ('{"bf16": {"enabled": yes}}', "text stands in double quotes"),
        ('{"steps_per_print": "auto"}', 'never "auto"'),
        ('{"zero_optimization": {"cpu_offload": true}}', "use offload_optimizer instead"),
        ('{"sparse_attention": {}}', "was taken out of DeepSpeed"),
        ('{"train_batch_size": 8', "a closing } is missing"),
        ('{"train_batch_size" 8}', "needs a colon"),
        ("[1, 2]", "must start with {"),
        ("{" * 5000, "line 1"),
        ('{"a":' * 5000, "nests too deep"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(own: str, told: str) -> None:
    assert told in refusal(own)


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
def test_a_file_that_says_another_thing_than_a_setting_is_named_and_the_fix_mends_it(
    own: dict[str, Any], values: dict[str, Any]
) -> None:
    (conflict,) = conflicts(own, **values)
    assert conflict.blocking and conflict.changes
    changed = values | conflict.changes
    assert not conflicts(changed.pop("deepspeed_config", own), **changed)


def test_a_file_that_leaves_it_to_the_settings_contradicts_nothing() -> None:
    assert not conflicts(
        {"zero_optimization": {"stage": "auto"}, "bf16": {"enabled": "auto"}, "train_batch_size": "auto"}
    )


def test_every_sentence_is_of_a_key_and_the_page_is_written_anew() -> None:
    assert set(SENTENCES) <= set(keys())
    assert deepspeed_reference.TARGET.read_text(encoding="utf-8") == deepspeed_reference.render()


@pytest.mark.train
def test_the_keys_are_the_installed_deepspeed_s(monkeypatch: pytest.MonkeyPatch) -> None:
    import deepspeed

    from training import deepspeed_catalogue

    if deepspeed.__version__ != json.loads(deepspeed_catalogue.TARGET.read_text())["deepspeed"]:
        pytest.skip("another DeepSpeed than the keys are from")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert deepspeed_catalogue.TARGET.read_text(encoding="utf-8") == deepspeed_catalogue.render()


def test_a_file_is_taken_by_its_path_too(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(BY_HAND)
    made = deepspeed_config(config(str(file)), 64, Precision.FP32)
    assert made is not None and made["steps_per_print"] == 100
