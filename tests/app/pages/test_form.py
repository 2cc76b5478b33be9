"""The form that is made of RunConfig."""

import json
from pathlib import Path

import pytest
from environment import use

from app.format.setting_text import in_full, in_short
from app.pages.common import form
from app.pages.common.form import Draft
from app.pages.new_run import folds
from training.config.applies import APPLIES, applies
from training.config.choices import Group
from training.config.fields import ConfigError, settings
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.errors import Problem
from worker.datasets import datasets
from worker.settings import get_settings

CHOSEN = {"model": "models/tiny", "data": "rows.jsonl"}


def values(**changes):
    return form.defaults() | CHOSEN | changes


@pytest.fixture(scope="module")
def components():
    """The components of every group, by setting."""
    import gradio as gr

    from app.server import within_event_loop

    def build():
        with gr.Blocks(analytics_enabled=False):
            groups = [folds.build_group(group, {}) | folds.build_group(group, {}, advanced=True) for group in Group]
            return {
                name: component for part in [form.build(folds.basic(), {}), *groups] for name, component in part.items()
            }

    return within_event_loop(build)


def test_every_setting_has_one_component_with_its_label_and_the_first_statement_of_its_sentence(components):
    assert sorted(components) == sorted(settings())
    assert components["lora_r"].label == "LoRA r"
    assert components["lora_r"].info == "Rank of the LoRA matrices."


def test_the_basic_settings_come_first_in_their_own_order(components):
    basic = ["data", "model", "task", "method", "strategy", "learning_rate", "epochs", "max_length", "num_processes"]
    assert list(components)[: len(basic)] == basic


def test_the_tooltip_of_a_setting_has_its_sentence_bounds_and_name():
    text = in_full(settings()["lora_r"])
    assert settings()["lora_r"].sentence.removesuffix(".") in text
    assert "1 to 1024" in text
    assert "lora_r" in text


def test_the_line_below_a_choice_explains_the_chosen_option_without_raw_names(components):
    assert components["strategy"].info == "One device holds the whole model and trains alone."
    assert all(len(item.choice_sentences) == len(item.choices) for item in settings().values())


def test_the_short_line_of_a_setting_is_a_statement_that_names_no_choice(subtests):
    for name, setting in settings().items():
        with subtests.test(name):
            line = in_short(setting)
            assert line.endswith(".")
            assert not line.startswith(("dpo", "kto", "wsd", "seq2seq", "full:"))


def test_a_folded_group_says_how_many_settings_differ_and_which():
    typed = values(lora_r="64", use_dora=True, double_quantization=False, quantization="4bit")
    html = folds.changes_html(typed)
    assert (
        '<p data-group="group-method">4 changed: Quantization 4-bit (NF4), LoRA r 64, no Double quantization, DoRA</p>'
        in html
    )
    assert '<p data-group="group-strategy"></p>' in html


def test_what_was_typed_is_escaped_in_the_line_of_a_folded_group():
    assert "<b>" not in folds.changes_html(values(name="<b>"))


def test_the_search_knows_the_names_that_other_programs_use():
    assert "cutoff_len" in folds.index()["max_length"]["elsewhere"]
    assert folds.index()["lora_r"]["applies"] == "method lora or qlora"


def test_numbers_are_text_fields_that_keep_what_is_typed(components):
    assert type(components["learning_rate"]).__name__ == "Textbox"
    assert components["learning_rate"].value == "0.0002"


def test_choices_are_shown_by_label_and_stored_by_value(components):
    assert ("ZeRO stage 2", "zero2") in components["strategy"].choices
    assert components["task"].choices[0] == ("Supervised fine-tuning (SFT)", "sft")
    assert components["task"].value == "sft"


def test_few_choices_are_buttons_and_many_a_dropdown(components):
    assert type(components["strategy"]).__name__ == "Radio"
    assert type(components["lr_scheduler"]).__name__ == "Dropdown"


def test_the_defaults_of_the_form_are_the_defaults_of_the_configuration():
    assert form.check(values()) == RunConfig(model="models/tiny", data="rows.jsonl")


def test_every_setting_survives_a_round_trip_through_the_form():
    config = RunConfig(
        model="m", data="d", name="n", validation_data="v", revision="main", max_length=77, train_on_prompt=True, lora_r=3,
        lora_dropout=0.25, use_dora=True, strategy="zero3", num_processes=2, offload_optimizer="cpu", offload_param="cpu",
        learning_rate=1.5e-5, lr_scheduler="cosine", warmup=7, epochs=2.5, max_steps=9, seed=2**32 - 1, save_steps=0.5,
        answer_rows=5,
    )  # fmt: skip
    assert form.check(form.from_config(config.model_dump(mode="json"))) == config


def test_lora_settings_apply_to_lora_alone(subtests):
    with_lora, without = form.visible(values()), form.visible(values(method="full"))
    for name in APPLIES:
        if "lora" in name or name in ("target_modules", "use_dora"):
            with subtests.test(name):
                assert (with_lora[name], without[name]) == (True, False)


@pytest.mark.parametrize(
    ("strategy", "processes", "optimizer", "parameters"),
    [
        ("single", False, False, False),
        ("ddp", True, False, False),
        ("zero0", True, False, False),
        ("zero2", True, True, False),
        ("zero3", True, True, True),
    ],
)
def test_the_visible_settings_of_a_strategy_depend_on_it(strategy, processes, optimizer, parameters):
    shown = form.visible(values(strategy=strategy))
    assert (shown["num_processes"], shown["offload_optimizer"], shown["offload_param"]) == (
        processes,
        optimizer,
        parameters,
    )


def test_the_form_shows_a_setting_exactly_where_the_configuration_says_that_it_has_an_effect(monkeypatch, subtests):
    use(monkeypatch, ENGINES="local,slurm")
    for chooser, setting in settings().items():
        if setting.kind == "choice":
            with subtests.test(chooser):
                for choice in setting.choices:
                    shown = form.visible(values(**{chooser: choice}))
                    of_config = RunConfig.model_validate(CHOSEN | {chooser: choice}).model_dump(mode="json")
                    assert shown == {name: applies(name, of_config) for name in shown}
    monkeypatch.undo()
    get_settings.cache_clear()


def test_an_invalid_hidden_setting_does_not_block_the_run():
    assert isinstance(form.check(values(method="full", lora_r="many")), RunConfig)


def test_hidden_settings_come_in_the_order_of_the_components():
    assert list(form.visible(values())) == [name for name in settings() if name in APPLIES]


def test_a_learning_rate_of_abc_names_field_value_and_fix():
    (problem,) = form.check(values(learning_rate="abc"))
    assert (problem.field, problem.value) == ("learning_rate", "abc")
    assert "not a number" in problem.message
    assert "above 0" in problem.fix


def test_an_empty_number_is_a_problem_and_not_the_default():
    (problem,) = form.check(values(micro_batch_size=""))
    assert problem.field == "micro_batch_size"


def test_an_empty_form_lacks_model_and_data():
    assert [problem.field for problem in form.check(form.defaults())] == ["model", "data"]


def test_a_draft_is_restored_as_typed():
    typed = values(learning_rate="abc", name="<b>")
    assert Draft.of({"values": typed, "parent": "run1"}) == Draft(typed, "run1")


@pytest.mark.parametrize("stored", [None, "text", {}, {"values": []}])
def test_a_broken_draft_becomes_an_empty_form(stored):
    assert Draft.of(stored) == Draft(form.defaults())


def test_a_draft_drops_what_the_form_cannot_show():
    stored = {"values": {"method": "sorcery", "gone": "1", "use_dora": "yes", "seed": 7, "lora_r": "8"}}
    assert Draft.of(stored).values == form.defaults() | {"lora_r": "8"}


class TestReview:
    """The check of the form, beside Start."""

    @pytest.fixture(autouse=True)
    def _machine(self, home, monkeypatch):
        from app.pages.new_run import review

        monkeypatch.setattr(review, "machine", lambda *_: Machine("cpu"))

    @pytest.fixture
    def review(self, tmp_path):
        from app.pages.new_run.review import review

        rows = tmp_path / "rows.jsonl"
        rows.write_text('{"prompt": "a", "completion": "b"}\n')
        return lambda **changes: review(values(**{"model": "Qwen/Qwen3-0.6B", "data": str(rows)} | changes))

    @staticmethod
    def stored(tmp_path, row):
        """The id of a stored data set of this row."""
        path = tmp_path / "stored.jsonl"
        path.write_text(json.dumps(row) + "\n")
        return datasets.add_file(path=path, name="stored.jsonl").id

    def test_what_start_would_refuse_is_named_before(self, review, tmp_path):
        unsuited = self.stored(tmp_path, {"prompt": "a", "completion": "b"})
        (tmp_path / "model").mkdir()
        for changes, words in [
            ({"data": str(tmp_path / "nothing.jsonl")}, "is neither a file nor a data set id"),
            ({"data": unsuited, "task": "dpo"}, "task dpo needs"),
            ({"model": str(tmp_path / "model")}, "config.json not found"),
        ]:
            checked = review(**changes)
            assert not checked.ready
            assert words in checked.problems[0].message

    def test_unknown_columns_have_a_mapping_as_a_button(self, review, tmp_path):
        from app.pages.new_run.steps import steps_html

        unknown = self.stored(tmp_path, {"question": "a", "answer": "b", "solution": "c"})
        checked = review(data=unknown)
        assert not checked.ready
        assert checked.problems[0].changes == {"columns": "prompt=question, completion=answer"}
        data, *others = steps_html(checked)
        assert "Choose the columns that the model learns from, below." in data  # where data.html has the button
        assert "columns" not in "".join(others)
        assert review(data=unknown, columns="prompt=question, completion=answer").ready

    def test_more_processes_than_the_cores_can_run_are_refused(self, review, monkeypatch):
        from app.pages.new_run import review as module

        monkeypatch.setattr(module, "machine", lambda *_: Machine("cpu", cores=2))
        assert not review(strategy="ddp", num_processes="64").ready
        assert review(strategy="ddp", num_processes="2").ready

    def test_a_complete_form_is_ready_and_has_all_previews(self, review):
        checked = review(strategy="zero2", num_processes="2")
        assert checked.ready
        assert checked.command.startswith("accelerate launch")
        assert '"stage": 2' in checked.deepspeed
        assert "strategy: zero2" in checked.yaml
        assert checked.global_batch == 8

    def test_previews_without_model_and_data_have_placeholders(self, home):
        from app.pages.new_run.review import review

        checked = review(form.defaults())
        assert not checked.ready
        assert "model: MODEL" in checked.yaml

    def test_an_invalid_form_has_no_new_previews(self, review):
        checked = review(learning_rate="abc")
        assert not checked.ready
        assert checked.command is None

    def test_a_blocking_conflict_has_its_fix_as_a_button(self, review):
        from app.pages.new_run.steps import steps_html

        checked = review(strategy="ddp", num_processes="1")
        assert not checked.ready
        assert "Set Strategy: Single device" in "".join(steps_html(checked))

    def test_advice_does_not_block_the_run(self, review):
        from app.pages.new_run.steps import steps_html

        checked = review(method="full", learning_rate="0.01")
        assert checked.ready
        assert "advice" in "".join(steps_html(checked))

    def test_a_folder_without_a_model_is_named(self, tmp_path):
        from app.pages.new_run.review import review
        from app.pages.new_run.steps import steps_html

        checked = review(values(model=str(tmp_path)))
        assert not checked.ready
        assert "config.json" in "".join(steps_html(checked))

    def test_what_was_typed_is_escaped(self, review):
        from app.pages.new_run.steps import steps_html

        html = "".join(steps_html(review(learning_rate="<script>alert(1)</script>")))
        assert "<script" not in html
        assert "&lt;script&gt;" in html


def test_the_starter_example_fills_the_form_with_an_existing_model_and_stored_rows(home):
    from app.pages.new_run import page
    from worker.datasets.run_data import DATASET_ID

    filled = dict(zip(settings(), page.starter_example(), strict=False))
    assert Path(filled["model"]["value"], "config.json").is_file()
    assert DATASET_ID.fullmatch(filled["data"]["value"])  # so that its tokens are counted before Start
    assert filled["learning_rate"] == "0.003"
    assert filled["max_length"] == "256"
    assert filled["target_modules"] == "all-linear"


def test_an_address_sets_settings_of_every_kind_and_unusable_values_are_dropped():
    shown = {"micro_batch_size": " 2 ", "precision": "bf16", "torch_compile": "true", "tf32": "false"}
    values_given = form.from_query(shown | {"strategy": "warp", "clone": "x"})
    assert values_given == {"micro_batch_size": "2", "precision": "bf16", "torch_compile": True, "tf32": False}


def test_trainable_parameters_are_listed_once_for_the_same_model_and_settings(monkeypatch):
    from app.pages.new_run import method_panel
    from worker.forecasts import shapes

    asked = []

    def list_targets(settled):
        asked.append(settled.config)
        if len(asked) == 1:
            raise ConfigError([Problem("model", "owner/listed-once", "is not here.", "Wait.")])
        return {"trainable": 10, "total": 1000, "matched": [], "whole": [], "others": []}

    monkeypatch.setattr(shapes, "list_targets", list_targets)
    typed = values(model="owner/listed-once")
    assert "is not here." in method_panel.targets_html(typed)  # a problem is not kept
    assert "<b>10</b> of 1,000" in method_panel.targets_html(typed)
    assert "<b>10</b> of 1,000" in method_panel.targets_html(typed | {"learning_rate": "0.1"})
    assert len(asked) == 2


def test_the_settings_of_an_engine_appear_where_the_installation_has_it(monkeypatch):
    names, several = ("num_machines", "slurm_options"), values(strategy="ddp")
    assert not any(form.visible(several)[name] for name in names)
    monkeypatch.setenv("LATHE_ENGINES", "local,slurm")
    get_settings.cache_clear()
    try:
        assert all(form.visible(several)[name] for name in names)
        assert not form.visible(values(strategy="single"))["num_machines"]
    finally:
        monkeypatch.undo()
        get_settings.cache_clear()
