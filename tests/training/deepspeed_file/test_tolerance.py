"""What the installed DeepSpeed ignores is accepted, and what it refuses is refused."""

import json
import logging
import os
from typing import Any

import pytest

from training.config.fields import ConfigError, parse
from training.deepspeed_file.check import TOLERANT, keys

SECTIONS = sorted(name for name, key in keys().items() if key.type == "section" and "." not in name)


def accepted_by_deepspeed(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setitem(os.environ, "DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    logging.disable(logging.CRITICAL)
    try:
        DeepSpeedConfig({"train_batch_size": 1} | values)
    except Exception:
        return False
    finally:
        logging.disable(logging.NOTSET)
    return True


def accepted_here(values: dict[str, Any]) -> bool:
    try:
        parse({"model": "m", "data": "d", "strategy": "zero2", "deepspeed_config": json.dumps(values)})
    except ConfigError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("section", ["", *SECTIONS])
def test_unknown_keys_are_treated_as_deepspeed_does(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, Any] = {"zzz_unknown": 1}
    values = {section: values} if section else values
    expected = accepted_by_deepspeed(values, monkeypatch)
    assert expected == (section in TOLERANT)
    assert accepted_here(values) == expected


def test_a_misspelt_key_is_named_everywhere() -> None:
    with pytest.raises(ConfigError, match="Did you mean queue_depth"):
        parse({"model": "m", "data": "d", "strategy": "zero2", "deepspeed_config": '{"aio": {"queue_dept": 8}}'})


@pytest.mark.parametrize("values", [{"aio": {"thread_count": 1}}, {"steps_per_print": "inf"}])
def test_values_of_other_programs_are_accepted(values: dict[str, Any]) -> None:
    assert accepted_here(values)
