"""Which files and folders the server has is not told to accounts: a name of one that exists and of none get the same answer."""

import json
import re

import pytest
from openapi_fields import Document, placed
from owned import address, as_, client_of_own, everything_is_alices  # noqa: F401
from prepared import prepared_installation  # noqa: F401

from training.rewards.rewards import MODEL
from worker.settings import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

THERE, NEARLY, ABSENT = "quartz", "quarts", "violin"
FORMS = ("{}", "{}/inner", "./{}", "../here/{}", "~/{}", "{here}/{}", "{here}/{}/rows.jsonl", "{}.jinja")
"""The names of files and folders, in which the brackets are the name that exists, nearly exists or does not."""
_ASKED = re.compile("viol\\w*|quar\\w*")  # a message may cut it off
_MADE_UP = re.compile(r"\b[0-9a-z]{12,64}\b|\d[\d.,:T-]*")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder and the home of the server, with folders that are a model and an adapter, rows and a template."""
    folder = tmp_path / "here"
    starter = ROOT / "static" / "starter"
    for place in (folder / THERE, folder / THERE / "inner"):
        place.mkdir(parents=True)
        for file in starter.iterdir():
            if file.suffix != ".jsonl":
                (place / file.name).symlink_to(file)
        (place / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 64, "target_modules": ["q_proj"]}')
        (place / "rows.jsonl").write_text('{"prompt": "one", "completion": "two"}\n' * 10)
    (folder / f"{THERE}.jinja").write_text("{{ messages }}")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


def written(field, name):
    """The ways in which a field names a model or file."""
    yield name
    if {"rewards", "metrics"} & set(field.place):
        yield json.dumps({"reward": MODEL, "model": name})
        yield json.dumps([{"reward": MODEL, "run": name}])


def bodies(document, field, bases):
    schema = document.body_schema(field.method, field.path)
    if schema is None:
        return [None]
    if schema.get("$ref", "").endswith("/RunConfig"):
        return bases
    body = document.example(schema)
    return [body | {"config": base} for base in bases] if "config" in body else [body]


def test_no_field_tells_an_account_whether_a_name_exists(api, prepared, own, here):
    alice = as_(prepared, "alice")
    document = Document(api.app.openapi())
    run = {"model": "static/starter", "data": prepared.dataset, "template_check": "off"}
    bases = [
        run,
        run | {"task": "distill", "teacher": "static/starter"},
        run | {"task": "grpo", "rewards": "exact_match"},
    ]
    told, cells = {}, 0

    def answer(field, body, value):
        asked = address(field.path, own)
        if field.where == "query":
            got = api.request(field.method, asked, params={field.place[0]: value}, json=body, headers=alice)
        else:
            got = api.request(field.method, asked, json=placed(body, field.place, value), headers=alice)
        return got.status_code, got.text

    for field in document.fields():
        queues = field.path in ("/api/runs", "/api/sweeps") or field.method in ("delete", "put", "patch")
        if field.where not in ("json", "query") or not field.is_text or queues or field.path.endswith("/stream"):
            continue
        for body in bodies(document, field, bases):
            for form in FORMS:
                names = [form.format(name, here=here) for name in (ABSENT, THERE, NEARLY)]
                for ways in zip(*(written(field, name) for name in names), strict=True):
                    cells += 1
                    first, *others = (
                        (status, _MADE_UP.sub("#", _ASKED.sub("#", text)))
                        for status, text in (answer(field, body, way) for way in ways)
                    )
                    if any(other != first for other in others):
                        told[field.name, form, ways[0]] = first, *others
    assert cells > 3000
    assert told == {}
