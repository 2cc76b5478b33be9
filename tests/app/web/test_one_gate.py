"""No setting reaches a file, folder or repository that an account may not name, whichever request carries it."""

import json

import pytest
from web import account, client

from training.config.fields import settings
from training.config.run_config import RunConfig

CANARY = "4242424242"
NO_PLACES = {
    "name", "stratify_by", "loss_field", "weight_field",  # fields of the rows
    "modules_to_save",  # names in the model
    "report_project",
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
