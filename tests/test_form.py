"""The form that is made of RunConfig."""

import pytest

from app import form
from app.form import APPLIES, Draft
from training.config import Group, RunConfig
from training.fields import settings
from training.rules import Machine

CHOSEN = {"model": "models/tiny", "data": "rows.jsonl"}


def values(**changes):
    return form.defaults() | CHOSEN | changes


@pytest.fixture(scope="module")
def components():
    """The components of every group, by setting."""
    import gradio as gr

    from app.main import within_event_loop

    def build():
        with gr.Blocks(analytics_enabled=False):
            return {name: one for group in Group for name, one in form.build_group(group, {}).items()}

    return within_event_loop(build)


def test_every_setting_has_a_component_with_its_label_sentence_and_bounds(components):
    assert list(components) == sorted(settings(), key=list(components).index)
    assert set(components) == set(settings())
    assert components["lora_r"].label == "LoRA r"
    assert settings()["lora_r"].sentence.removesuffix(".") in components["lora_r"].info
    assert "1 to 1024" in components["lora_r"].info


def test_numbers_are_text_fields_so_that_what_was_typed_stays(components):
    assert type(components["learning_rate"]).__name__ == "Textbox"
    assert components["learning_rate"].value == "0.0002"


def test_few_choices_are_buttons_and_many_a_list(components):
    assert type(components["strategy"]).__name__ == "Radio"
    assert type(components["lr_scheduler"]).__name__ == "Dropdown"


def test_the_defaults_of_the_form_are_the_defaults_of_the_configuration():
    assert form.check(values()) == RunConfig(model="models/tiny", data="rows.jsonl")


def test_every_setting_survives_the_way_through_the_form():
    config = RunConfig(
        model="m", data="d", name="n", validation_data="v", revision="main", max_length=77, train_on_prompt=True, lora_r=3,
        lora_dropout=0.25, use_dora=True, strategy="zero3", num_processes=2, offload_optimizer="cpu", offload_param="cpu",
        learning_rate=1.5e-5, lr_scheduler="cosine", warmup=7, epochs=2.5, max_steps=9, seed=2**32 - 1, save_steps=0.5,
        answer_rows=5,
    )  # fmt: skip
    assert form.check(form.from_config(config.model_dump(mode="json"))) == config


@pytest.mark.parametrize("name", [name for name in APPLIES if "lora" in name or name in ("target_modules", "use_dora")])
def test_lora_settings_apply_to_lora_alone(name):
    assert form.visible(values())[name]
    assert not form.visible(values(method="full"))[name]


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
def test_what_is_shown_of_the_strategy_depends_on_it(strategy, processes, optimizer, parameters):
    shown = form.visible(values(strategy=strategy))
    assert (shown["num_processes"], shown["offload_optimizer"], shown["offload_param"]) == (processes, optimizer, parameters)


def test_a_hidden_setting_that_is_wrong_does_not_stand_in_the_way():
    assert isinstance(form.check(values(method="full", lora_r="many")), RunConfig)


def test_what_is_hidden_comes_in_the_order_of_the_components():
    assert list(form.visible(values())) == [name for name in settings() if name in APPLIES]


def test_a_learning_rate_of_abc_names_field_value_and_fix():
    (problem,) = form.check(values(learning_rate="abc"))
    assert (problem.field, problem.value) == ("learning_rate", "abc")
    assert "not a number" in problem.message
    assert "above 0" in problem.fix


def test_an_empty_number_is_asked_for_and_not_taken_for_the_default():
    (problem,) = form.check(values(micro_batch_size=""))
    assert problem.field == "micro_batch_size"


def test_an_empty_form_says_that_model_and_data_are_missing():
    assert [problem.field for problem in form.check(form.defaults())] == ["model", "data"]


def test_a_draft_comes_back_as_it_was_typed():
    typed = values(learning_rate="abc", name="<b>")
    assert Draft.of({"values": typed, "parent": "run1"}) == Draft(typed, "run1")


@pytest.mark.parametrize("stored", [None, "text", {}, {"values": []}])
def test_a_draft_that_is_broken_becomes_an_empty_form(stored):
    assert Draft.of(stored) == Draft(form.defaults())


def test_a_draft_drops_what_the_form_cannot_show():
    stored = {"values": {"method": "sorcery", "gone": "1", "use_dora": "yes", "seed": 7, "lora_r": "8"}}
    assert Draft.of(stored).values == form.defaults() | {"lora_r": "8"}


class TestReview:
    """What the form amounts to, beside Start."""

    @pytest.fixture(autouse=True)
    def _machine(self, home, monkeypatch):
        from app.pages import review

        monkeypatch.setattr(review, "machine", lambda: Machine("cpu"))

    @pytest.fixture
    def review(self):
        from app.pages.review import review

        return lambda **changes: review(values(model="Qwen/Qwen3-0.6B", **changes))

    def test_a_whole_form_is_ready_and_has_all_previews(self, review):
        found = review(strategy="zero2", num_processes="2")
        assert found.ready
        assert found.command.startswith("accelerate launch")
        assert '"stage": 2' in found.deepspeed
        assert "strategy: zero2" in found.yaml
        assert found.global_batch == 8

    def test_the_previews_of_a_form_without_model_and_data_name_what_stands_for_them(self, home):
        from app.pages.review import review

        found = review(form.defaults())
        assert not found.ready
        assert "model: MODEL" in found.yaml

    def test_a_form_that_is_wrong_has_no_previews_and_keeps_those_shown_before(self, review):
        found = review(learning_rate="abc")
        assert not found.ready
        assert found.command is None

    def test_a_conflict_that_blocks_is_offered_with_its_fix_as_a_button(self, review):
        from app.pages.review import problems_html

        found = review(strategy="ddp", num_processes="1")
        assert not found.ready
        assert "Set Strategy to single" in problems_html(found)

    def test_advice_does_not_stand_in_the_way(self, review):
        from app.pages.review import problems_html

        found = review(method="full", learning_rate="0.01")
        assert found.ready
        assert "advice" in problems_html(found)

    def test_a_folder_that_is_no_model_is_named(self, tmp_path):
        from app.pages.review import problems_html, review

        found = review(values(model=str(tmp_path)))
        assert not found.ready
        assert "config.json" in problems_html(found)

    def test_what_was_typed_is_escaped(self, review):
        from app.pages.review import problems_html

        told = problems_html(review(learning_rate="<script>alert(1)</script>"))
        assert "<script" not in told
        assert "&lt;script&gt;" in told


def test_the_starter_example_fills_the_form_with_paths_that_are_there(home):
    from app.pages import launch

    filled = dict(zip(settings(), launch.filled_in(), strict=False))
    assert filled["learning_rate"] == "0.003"
    assert filled["max_length"] == "256"
    assert filled["target_modules"] == "all-linear"


def test_an_address_gives_settings_of_every_kind_and_what_a_form_cannot_show_is_left_out():
    shown = {"micro_batch_size": " 2 ", "precision": "bf16", "torch_compile": "true", "tf32": "false"}
    given = form.given(shown | {"strategy": "warp", "clone": "x"})
    assert given == {"micro_batch_size": "2", "precision": "bf16", "torch_compile": True, "tf32": False}
