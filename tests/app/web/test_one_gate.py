"""No setting reaches a file, folder or repository that an account may not name, whichever request carries it."""

import ast
import json
from pathlib import Path

import pytest
from paths import ROOT
from web import account, client

from training.config.fields import ConfigError, settings
from training.config.run_config import RunConfig
from worker.allowed_paths import EVERYTHING, AllowedPaths
from worker.forecasts import run_forecast, shapes
from worker.runs.settle import Settled, settle

CANARY = "4242424242"
NO_PLACES = {
    "name", "stratify_by", "group_by", "loss_field", "weight_field",  # fields of the rows
    "modules_to_save",  # names in the model
    "report_project",
    "rewards",
}  # fmt: skip


@pytest.fixture
def api(home):
    return client()


@pytest.fixture
def alice(home):
    return account("alice")


@pytest.fixture
def secret(tmp_path):
    """A folder of the server's user with a model, rows and files of settings."""
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": int(CANARY)}))
    (folder / "rows.jsonl").write_text(f'{{"prompt": "{CANARY}", "completion": "two"}}\n' * 10)
    (folder / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, CANARY: 1}))
    (folder / "template.jinja").write_text(f"{{# {CANARY} #}}{{{{ messages }}}}")
    return folder


@pytest.fixture
def fine(api):
    rows = b'{"prompt": "one", "completion": "two"}\n' * 20
    data = api.post("/api/datasets?name=rows.jsonl", content=rows).json()["id"]
    return {"model": "static/starter", "data": data}


def requests(config, field):
    """Every request that carries a configuration, with whether it queues something."""
    space = {"lora_r": [4, 8]}
    elsewhere = {name: value for name, value in config.items() if name != field} | {"model": "static/starter"}
    yield "/api/runs", config, True
    yield "/api/sweeps", {"config": config, "space": space}, True
    yield "/api/sweeps", {"config": elsewhere, "space": space | {field: [config[field]]}}, True
    yield "/api/sweeps/plan", {"config": config, "space": space}, False
    yield "/api/checks", config, False
    yield "/api/forecasts", config, False
    if field in ("data", "chat_template"):
        yield "/api/renderings", config, False
    if field == "model":
        yield "/api/targets", config, False


@pytest.mark.parametrize(
    ("field", "file", "needed"),
    [
        ("model", "", {}),
        ("teacher", "", {"task": "distill"}),
        ("data", "rows.jsonl", {}),
        ("validation_data", "rows.jsonl", {}),
        ("chat_template", "template.jinja", {}),
        ("deepspeed_config", "zero.json", {"strategy": "zero2"}),
        ("nvme_path", "", {"strategy": "zero3", "offload_optimizer": "nvme"}),
    ],
)
def test_an_account_reaches_no_file_of_the_server_by_any_request(
    api, alice, secret, fine, field, file, needed, subtests
):
    place = str(secret / file)
    for number, (path, body, queues) in enumerate(requests(fine | needed | {field: place}, field)):
        with subtests.test(f"{number} {path}"):
            answer = api.post(path, json=body, headers=alice)
            assert CANARY not in answer.text
            if queues:
                assert answer.status_code == 422, answer.text
                assert field in [problem["field"].rpartition(".")[2] for problem in answer.json()["problems"]], (
                    answer.text
                )
    assert api.get("/api/runs").json()["total"] == 0


def test_each_setting_that_is_text_refuses_a_path_or_names_no_place(api, alice, secret, fine, subtests):
    """A new setting has to be decided here."""
    texts = [name for name in settings() if isinstance(RunConfig.model_fields[name].default, str | None)]
    accepted = set()
    for name in texts:
        answer = api.post("/api/runs", json=fine | {name: str(secret / "rows.jsonl")}, headers=alice)
        assert CANARY not in answer.text
        if answer.status_code == 201:
            accepted.add(name)
    assert len(texts) > 20 and accepted == NO_PLACES, sorted(accepted)


@pytest.mark.parametrize("relative", [False, True])
def test_an_account_is_not_told_which_files_exist(api, alice, secret, fine, relative, monkeypatch):
    """The answer about a path is the same, but for the path, whether or not there is a file or folder. A relative one may be a hub
    id, and must not be looked up in the folder in which the server was started."""
    (secret / "adapter_config.json").write_text('{"peft_type": "LORA", "target_modules": ["q_proj"]}')
    absent = secret.with_name("violin")
    if relative:
        monkeypatch.chdir(secret.parent)
        secret, absent = Path(secret.name), Path(absent.name)
    files = {"data": "rows.jsonl", "validation_data": "rows.jsonl", "chat_template": "template.jinja"}
    files |= {"deepspeed_config": "zero.json"}
    told = {}
    for field in ("model", "teacher", "data", "init_adapter", "nvme_path", *files):
        more = {"task": "distill"} if field == "teacher" else {}
        for path in ("/api/checks",) if relative else ("/api/checks", "/api/runs"):  # a hub id is queued
            answers = [
                api.post(path, json=fine | more | {field: str(folder / files.get(field, ""))}, headers=alice)
                for folder in (secret, absent)
            ]
            first, second = ((answer.status_code, answer.text) for answer in answers)
            if first != (second[0], second[1].replace(str(absent), str(secret))):
                told[field, path] = first, second
    assert told == {}


@pytest.mark.parametrize("letter", ["a", "9", "-", "\N{LATIN SMALL LIGATURE FFI}", "\N{CJK UNIFIED IDEOGRAPH-20000}"])
def test_a_name_that_no_folder_can_have_is_no_adapter(api, alice, fine, letter):
    for length in (60, 61, 255, 256, 2000):
        for headers in ({}, alice):
            answer = api.post("/api/checks", json=fine | {"init_adapter": letter * length}, headers=headers)
            assert answer.status_code == 200
            assert "init_adapter" in [problem["field"] for problem in answer.json()["problems"]]


def test_only_allowed_paths_look_up_what_a_user_names():
    """Each look-up says who asks. Commands act for the server's user."""
    looking = {
        file.relative_to(ROOT).as_posix()
        for package in ("app", "worker")
        for file in Path(ROOT, package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id == "find_path"
    }
    assert {file for file in looking if not file.startswith("app/cli/")} == {"worker/allowed_paths.py"}


def test_a_settled_configuration_is_made_by_settle_alone():
    config = RunConfig(model="m", data="d")
    with pytest.raises(TypeError, match="Only settle"):
        Settled(config, config, EVERYTHING, "alice", (), None, gate=None)


def test_nothing_is_read_of_what_the_user_may_not_name(home, secret):
    config = RunConfig(model=str(secret), data=str(secret / "rows.jsonl"), init_adapter=str(secret))
    settled = settle(config, AllowedPaths(data=(), models=()), "alice")
    assert {problem.field for problem in settled.refused} == {"model", "init_adapter"}
    assert (settled.config, settled.adapter) == (config, None)
    assert settled.data[0].data.message == "is not a data set id."
    for read in (
        lambda: settled.model,
        lambda: run_forecast.verdict(settled, settled.machine),
        lambda: shapes.list_targets(settled),
    ):
        with pytest.raises(ConfigError, match="allowed folder"):
            read()
