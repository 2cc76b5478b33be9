"""The modules that a method trains, found without weights: in process, in a limited process, by command, on the page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import warm
from click.testing import CliRunner
from tiny import make_model

from app.cli.__main__ import main
from app.pages.new_run.method_panel import options_html, targets_html
from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.loading import load_model, parameter_counts
from training.models.target_modules import ModuleGroup, targets

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def config(model: Path | str, **values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": str(model), "data": "d"} | values)


def test_modules_that_differ_only_in_their_number_form_one_group(folder: Path) -> None:
    result = targets(config(folder))
    assert result.matched == [
        ModuleGroup("model.layers.*.self_attn.q_proj", 2, "64 -> 64"),
        ModuleGroup("model.layers.*.self_attn.v_proj", 2, "64 -> 64"),
    ]
    assert (result.trainable, result.total) == (8192, 123_840)
    assert [group.pattern.rsplit(".", 1)[-1] for group in result.others] == [
        "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "matched", "whole"),
    [
        ({"target_modules": r".*layers\.1\..*(q|k)_proj"}, {"q_proj": 1, "k_proj": 1}, {}),
        ({"method_options": "layers_to_transform=[0]"}, {"q_proj": 1, "v_proj": 1}, {}),
        ({"modules_to_save": "lm_head", "lora_init": "pissa"}, {"q_proj": 2, "v_proj": 2}, {"lm_head": 1}),
        ({"method": "ia3"}, {"k_proj": 2, "v_proj": 2, "down_proj": 2}, {}),
        ({"method": "prompt_tuning", "method_options": "num_virtual_tokens=4"}, {}, {}),
        ({"method": "full", "trainable_layers": 1, "modules_to_save": "norm"}, {}, {"q_proj": 1, "norm": 1}),
    ],
)
def test_each_way_of_choosing_modules_shows_what_it_matches(
    folder: Path, settings: dict[str, Any], matched: dict[str, int], whole: dict[str, int]
) -> None:
    result = targets(config(folder, **settings))
    assert {group.pattern.rsplit(".", 1)[-1]: group.count for group in result.matched} == matched
    seen = {group.pattern.rsplit(".", 1)[-1]: group.count for group in result.whole}
    assert whole.items() <= seen.items() and bool(whole) == bool(seen)
    assert result.trainable > 0


@pytest.mark.parametrize("targets_of_the_head", ["q_proj, lm_head", ".*(q_proj|lm_head)"])
def test_a_task_that_reads_the_heads_weight_refuses_an_adapter_on_it(folder: Path, targets_of_the_head: str) -> None:
    with pytest.raises(UserError, match="on the head") as caught:
        targets(config(folder, task="dpo", target_modules=targets_of_the_head))
    (fix,) = re.findall(r"Set it to (.*)\.", caught.value.problem.fix)
    assert "lm_head" not in str(targets(config(folder, task="dpo", target_modules=fix)).matched)


def test_all_linear_modules_are_those_without_the_head(folder: Path) -> None:
    assert "lm_head" not in str(targets(config(folder, task="dpo", target_modules="all-linear")).matched)


def test_the_counts_are_those_of_the_model_with_its_weights(folder: Path) -> None:
    import torch

    whole = load_model(config(folder, method="full"), torch.float32)
    result = targets(config(folder, method="full"))
    assert (result.trainable, result.total) == parameter_counts(whole)


def test_a_pattern_that_matches_modules_without_weights_is_named_as_the_cause(folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        targets(config(folder, target_modules=".*"))
    assert caught.value.problem.field == "target_modules"


@pytest.mark.parametrize("target_modules", ["query", ".*query"])
def test_if_nothing_matches_the_error_lists_the_model_s_modules(folder: Path, target_modules: str) -> None:
    with pytest.raises(UserError) as caught:
        targets(config(folder, target_modules=target_modules))
    assert caught.value.problem.field == "target_modules"
    assert "gate_proj" in caught.value.fix


def test_the_command_prints_the_result_of_the_limited_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm.use_python(monkeypatch)
    done = CliRunner().invoke(main, ["targets", "--model", str(folder), "--target-modules", "all-linear"])
    assert done.exit_code == 0, done.output
    assert "34,816 of 150,464 parameters are trainable" in done.output
    assert "model.layers.*.mlp.down_proj" in done.output and "128 -> 64" in done.output


def test_an_unreadable_model_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "sorcery"}))
    with pytest.raises(UserError) as caught:
        targets(config(tmp_path))
    assert caught.value.problem.field == "model" and "sorcery" in str(caught.value)


def test_the_page_reports_problems_of_a_form_first() -> None:
    assert "is missing" in targets_html({"model": "", "method": "lora"})
    assert "is not an integer" in targets_html({"model": "m", "method": "lora", "lora_r": "many"})


def test_the_page_lists_the_chosen_method_s_own_options() -> None:
    assert "d_initial" in options_html("vera") and "0.1" in options_html("vera")
    assert "rank_pattern" in options_html("qlora")
    assert options_html("full") == ""
