"""Which files of the machine an account may name, through every place that takes a path."""

import contextvars
import io
import json

import pytest

from app import callers, form, log_diagnosis
from app.callers import Caller
from app.pages import dataset, launch, memory_panel, method_panel
from app.pages.dataset_view import View
from app.pages.review import review
from training.config import RunConfig
from training.fields import ConfigError
from worker import datasets
from worker.reach import EVERYTHING, allowed
from worker.settings import ROOT, get_settings


def as_bob(function, *given):
    """What `function` answers where bob, who has an account, calls."""

    def called():
        callers.begin(Caller("bob", here=False))
        return function(*given)

    return contextvars.copy_context().run(called)


@pytest.fixture
def folders(bare_home, monkeypatch, tmp_path):
    """`shared`, which accounts may read, and `private`, which they may not, each with a model and data."""
    for name in ("shared", "private"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(
            json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4242})
        )
        (tmp_path / name / "rows.jsonl").write_text('{"prompt": "one", "completion": "two"}\n')
    (tmp_path / "shared" / "link").symlink_to(tmp_path / "private")
    for name in ("DATA_FOLDERS", "MODEL_FOLDERS"):
        monkeypatch.setenv(f"LATHE_{name}", str(tmp_path / "shared"))
    get_settings.cache_clear()
    return tmp_path


def config(**settings):
    return RunConfig.model_validate({"model": "Qwen/Qwen3-0.6B", "data": "0123456789abcdef"} | settings)


def test_an_account_reaches_what_the_settings_allow(folders):
    reach = allowed()
    assert reach.find(str(folders / "shared/rows.jsonl")) == folders / "shared/rows.jsonl"
    assert reach.model(str(folders / "shared")) is None


@pytest.mark.parametrize(
    "path", ["private", "shared/link", "shared/../private", "shared/..", "nowhere", "shared/link/../private"]
)
def test_an_account_reaches_nothing_else_by_no_way(folders, path):
    reach = allowed()
    assert reach.find(str(folders / path)) is None
    assert reach.model(str(folders / path)).field == "model"


def test_the_starter_and_hub_ids_are_for_everybody(folders):
    reach = allowed()
    for model in ("static/starter", str(ROOT / "static/starter"), "gpt2", "Qwen/Qwen3-0.6B"):
        assert reach.model(model) is None
    assert reach.find("static/starter/train.jsonl")


@pytest.mark.parametrize("model", ["~", "~root", "/", ".", "..", "a/../..", "a/b/c", "", " /etc", "x\0", "../x"])
def test_what_is_no_hub_id_is_not_taken_for_one(folders, model):
    assert allowed().model(model) is not None


def test_without_folders_only_the_starter_is_reached(bare_home, tmp_path):
    assert allowed().find(str(tmp_path)) is None
    assert allowed().model(str(tmp_path)) is not None


def test_the_server_s_user_reaches_everything(folders):
    assert EVERYTHING.find(str(folders / "private/rows.jsonl"))
    assert EVERYTHING.problems(config(model=str(folders / "private"), nvme_path="/x")) == []


@pytest.mark.parametrize(
    "own",
    [
        {"tensorboard": {"enabled": True, "output_path": "logs"}},
        {"csv_monitor": {"enabled": True, "output_path": "x", "job_name": "../../x"}},
        {"csv_monitor": {"enabled": True, "job_name": "../../x"}},
        {"flops_profiler": {"enabled": True, "output_file": "x"}},
        {"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/root"}}},
    ],
)
def test_a_deepspeed_json_of_an_account_s_names_no_place_to_write_to(folders, own):
    found = allowed().problems(config(deepspeed_config=json.dumps(own), strategy="zero2"))
    assert {problem.field for problem in found} == {"deepspeed_config"}


def test_an_account_s_run_pushes_nothing_with_the_token_of_the_server_s_user(folders):
    found = allowed().problems(config(push_to_hub="bob/model"))
    assert [problem.field for problem in found] == ["push_to_hub"]
    assert EVERYTHING.problems(config(push_to_hub="bob/model")) == []


def test_the_server_s_user_pushes_from_a_network_too(folders, monkeypatch):
    monkeypatch.setenv("LATHE_HOST", "0.0.0.0")
    get_settings.cache_clear()
    reach = Caller(here=False).reach
    assert reach.problems(config(push_to_hub="me/model")) == []
    assert reach.model(str(folders / "private")) is not None
    assert Caller("bob", here=False).reach.problems(config(push_to_hub="bob/model"))


def test_a_deepspeed_json_without_places_is_an_account_s_to_give(folders):
    own = {"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW"}, "train_batch_size": "auto"}
    assert allowed().problems(config(deepspeed_config=json.dumps(own), strategy="zero2")) == []


def pages():
    """Every place of the pages that looks at a model, as a function of its name."""

    def values(model):
        return {**form.defaults(), "model": model, "data": "static/starter/train.jsonl"}

    yield "review", lambda model: str(review(values(model)))
    yield "memory", lambda model: memory_panel.memory_html(values(model), memory_panel.HERE, "")
    yield "step", lambda model: memory_panel.step_html(values(model), memory_panel.HERE, "")
    yield "targets", lambda model: method_panel.targets_html(values(model))


@pytest.mark.parametrize("place", [name for name, _ in pages()])
def test_no_page_tells_an_account_of_a_model_out_of_reach(home, folders, place):
    look = dict(pages())[place]
    look(str(folders / "private"))  # what the server's user has asked for must not be answered from memory
    told = as_bob(look, str(folders / "private"))
    assert "4242" not in told
    assert "Llama" not in told
    assert "may read" in told or "must be right first" in told


def test_a_diagnosis_reads_no_model_out_of_reach(home, folders):
    for path in (folders / "private", folders / "private" / "config.json"):
        with pytest.raises(ConfigError, match="may read"):
            as_bob(log_diagnosis.of_stream, io.BytesIO(b"Error: x"), str(path))


def test_a_data_set_s_page_counts_with_no_model_out_of_reach(home, folders):
    added = datasets.add_file(path=folders / "shared/rows.jsonl", name="rows.jsonl")
    view = View(id=added.id, model=str(folders / "private"))
    assert as_bob(dataset.show, view).view.model == "static/starter"
    assert dataset.show(view).view.model == str(folders / "private")


def test_new_run_does_not_look_at_tokens_of_a_model_out_of_reach(home, folders):
    added = datasets.add_file(path=folders / "shared/rows.jsonl", name="rows.jsonl")
    given = (added.id, str(folders / "private"), "1024", "")
    assert "private" in launch.described(*given)
    assert "private" not in as_bob(launch.described, *given)
