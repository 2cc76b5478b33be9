"""Files of the machine that an account can use, through every input that accepts a path."""

import contextvars
import io
import json

import pytest
import warm
from starlette.datastructures import QueryParams

from app.access import callers
from app.access.callers import Caller
from app.pages.common import form
from app.pages.dataset import page as dataset_page
from app.pages.new_run import memory_panel, method_panel
from app.pages.new_run import page as new_run_page
from app.pages.new_run.review import review
from app.web.rest.diagnoses import with_log
from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.model_info.config_json import ModelError, read_config
from worker.allowed_paths import EVERYTHING, allowed
from worker.datasets import datasets
from worker.runs.settle import settle
from worker.settings import ROOT, get_settings


def as_bob(function, *arguments):
    """Returns the result of `function` in a request of bob, who has an account."""

    def called():
        callers.begin(Caller("bob", here=False))
        return function(*arguments)

    return contextvars.copy_context().run(called)


@pytest.fixture
def folders(bare_home, monkeypatch, tmp_path):
    """`shared`, which accounts can read, and `private`, which they cannot, each with a model and data."""
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


def test_an_account_can_use_allowed_paths(folders):
    paths = allowed()
    assert paths.find(str(folders / "shared/rows.jsonl")) == folders / "shared/rows.jsonl"
    assert paths.model(str(folders / "shared")) is None


@pytest.mark.parametrize(
    "path", ["private", "shared/link", "shared/../private", "shared/..", "nowhere", "shared/link/../private"]
)
def test_an_account_cannot_use_other_paths(folders, path):
    paths = allowed()
    assert paths.find(str(folders / path)) is None
    assert paths.model(str(folders / path)).field == "model"


def test_every_account_can_use_the_starter_model_and_hub_ids(folders):
    paths = allowed()
    for model in ("static/starter", str(ROOT / "static/starter"), "gpt2", "Qwen/Qwen3-0.6B"):
        assert paths.model(model) is None
    assert paths.find("static/starter/train.jsonl")


@pytest.mark.parametrize("model", ["~", "~root", "/", ".", "..", "a/../..", "a/b/c", "", " /etc", "x\0", "../x"])
def test_invalid_hub_ids_are_refused(folders, model):
    assert allowed().model(model) is not None


def test_a_hub_id_is_none_of_the_folders_in_which_the_server_was_started(folders, monkeypatch):
    monkeypatch.chdir(folders)
    assert (allowed().model("private"), allowed().find_model("private")) == (None, None)
    assert EVERYTHING.find_model("private") == folders / "private"
    account = settle(config(model="private"), allowed(), "bob")
    assert account.model.path is None and account.model.hidden_size is None
    assert settle(config(model="private")).config.model == str(folders / "private")
    with pytest.raises(ModelError, match="not found"):
        read_config("private")  # what is left of the name in a configuration


@pytest.mark.parametrize("place", ["review", "memory", "step"])
def test_no_page_tells_an_account_that_there_is_a_model_in_a_folder_of_the_server(home, folders, place, monkeypatch):
    monkeypatch.chdir(folders)
    look = dict(pages())[place]
    there, absent, nearly = (as_bob(look, name) for name in ("private", "violins", "privata"))
    assert there == absent.replace("violins", "private") == nearly.replace("privata", "private")


def test_without_folders_accounts_can_use_only_the_starter_model(bare_home, tmp_path):
    assert allowed().find(str(tmp_path)) is None
    assert allowed().model(str(tmp_path)) is not None


def test_the_server_s_user_can_use_every_path(folders):
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
def test_an_account_s_deepspeed_json_cannot_contain_output_paths(folders, own):
    problems = allowed().problems(config(deepspeed_config=json.dumps(own), strategy="zero2"))
    assert {problem.field for problem in problems} == {"deepspeed_config"}


def test_an_account_s_run_cannot_push_with_the_server_s_hub_token(folders):
    problems = allowed().problems(config(push_to_hub="bob/model"))
    assert [problem.field for problem in problems] == ["push_to_hub"]
    assert EVERYTHING.problems(config(push_to_hub="bob/model")) == []


def test_an_account_s_run_cannot_bring_code_for_its_rewards(folders):
    run = config(task="grpo", rewards="city", reward_code="def city(prompt, answer, expected):\n    return 1\n")
    assert [problem.field for problem in allowed().problems(run)] == ["reward_code"]
    assert EVERYTHING.problems(run) == []


def test_the_server_s_user_can_push_on_a_network_address_too(folders, monkeypatch):
    monkeypatch.setenv("LATHE_HOST", "0.0.0.0")
    get_settings.cache_clear()
    paths = Caller(here=False).allowed
    assert paths.problems(config(push_to_hub="me/model")) == []
    assert paths.model(str(folders / "private")) is not None
    assert Caller("bob", here=False).allowed.problems(config(push_to_hub="bob/model"))


def test_an_account_can_use_a_deepspeed_json_without_paths(folders):
    own = {"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW"}, "train_batch_size": "auto"}
    assert allowed().problems(config(deepspeed_config=json.dumps(own), strategy="zero2")) == []


def pages():
    """Every function of the pages that reads a model, by name."""

    def values(model):
        return {**form.defaults(), "model": model, "data": "static/starter/train.jsonl"}

    yield "review", lambda model: str(review(values(model)))
    yield "memory", lambda model: memory_panel.memory_html(values(model), memory_panel.HERE, "")
    yield "step", lambda model: memory_panel.step_html(values(model), memory_panel.HERE, "")
    yield "targets", lambda model: method_panel.targets_html(values(model))


@pytest.mark.parametrize("place", ["review", "memory", "step", pytest.param("targets", marks=pytest.mark.slow)])
def test_no_page_shows_an_account_a_model_outside_its_folders(home, folders, place, monkeypatch):
    if place == "targets":
        warm.use_python(monkeypatch)
    look = dict(pages())[place]
    look(str(folders / "private"))  # cached results of the server's user must not be returned
    html = as_bob(look, str(folders / "private"))
    assert "4242" not in html
    assert "Llama" not in html
    assert "in an allowed folder" in html or "Fix the problems above" in html


def test_a_diagnosis_does_not_read_a_model_outside_the_folders(home, folders):
    for path in (folders / "private", folders / "private" / "config.json"):
        with pytest.raises(ConfigError, match="in an allowed folder"):
            as_bob(with_log, io.BytesIO(b"Error: x"), str(path))


def test_a_data_set_page_does_not_tokenize_with_a_model_outside_the_folders(home, folders):
    added = datasets.add_file(path=folders / "shared/rows.jsonl", name="rows.jsonl")
    query = QueryParams({"id": added.id, "model": str(folders / "private")})
    assert as_bob(dataset_page.shown, query)["view"].model == "static/starter"
    assert dataset_page.shown(query)["view"].model == str(folders / "private")


def test_new_run_does_not_show_tokens_of_a_model_outside_the_folders(home, folders):
    added = datasets.add_file(path=folders / "shared/rows.jsonl", name="rows.jsonl")
    arguments = (added.id, str(folders / "private"), "1024", "")
    assert "private" in new_run_page.described(*arguments)[0]
    assert "private" not in as_bob(new_run_page.described, *arguments)[0]
