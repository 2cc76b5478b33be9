"""The config.json of a hub model: fetched, then used by the forecast on the page and the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from stand_in_hub import serve_model

from app.cli.__main__ import main
from app.pages.common import form
from app.pages.new_run import memory_panel
from training.config.run_config import RunConfig
from training.model_info.config_json import ModelError
from worker.forecasts import shapes
from worker.runs.settle import settle
from worker.settings import ROOT

CONFIG = (ROOT / "static" / "starter" / "config.json").read_bytes()
pytestmark = pytest.mark.slow  # the hub's client takes a second to import


@pytest.fixture
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    with serve_model({"config.json": CONFIG, "README.md": b"x"}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield address
    memory_panel._shapes.clear()


def test_a_fetched_config_gives_the_forecast(hub: str) -> None:
    with pytest.raises(ModelError, match="not on this machine"):
        shapes.shape_at("owner/model")
    shapes.fetch("owner/model")
    assert shapes.shape_at("owner/model") == shapes.shape_at(str(ROOT / "static" / "starter" / "config.json"))


def test_the_page_offers_to_fetch_it(hub: str) -> None:
    values = form.from_config({"model": "owner/model"})
    shown = memory_panel.memory_html(values, memory_panel.HERE, "")
    assert "Fetch its config.json" in shown and "owner/model" in shown
    assert memory_panel._fetch({"fetch": "owner/model", "revision": None}) is None
    assert "Fits" in memory_panel.memory_html(values, memory_panel.HERE, "")


@pytest.mark.parametrize("name", ["a" * 300, "~nobody-of-that-name", "a\0b"])
def test_a_run_forecasts_without_a_second_model_whose_name_is_impossible(home: Path, name: str) -> None:
    with pytest.raises(ModelError, match="not on this machine"):
        shapes.config_file(name)
    given = {"model": str(ROOT / "static" / "starter"), "data": "d"}
    alone = shapes.of_run(settle(RunConfig.model_validate(given)))
    rewards = json.dumps([{"reward": "model", "model": name}])
    for settings in ({"task": "distill", "teacher": name}, {"task": "grpo", "rewards": rewards}):
        assert shapes.of_run(settle(RunConfig.model_validate(given | settings))) == alone


def test_a_local_model_without_a_config_has_no_such_button(hub: str, tmp_path: Path) -> None:
    shown = memory_panel.memory_html(form.from_config({"model": str(tmp_path)}), memory_panel.HERE, "")
    assert "Fetch" not in shown


@pytest.mark.parametrize(
    ("model", "revision", "words"),
    [
        ("owner/other", None, "is not a public model on the hub"),
        ("../secret", None, "is not a hub id"),
    ],
)
def test_what_cannot_be_fetched_is_named(hub: str, model: str, revision: str | None, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        shapes.fetch(model, revision)
    assert words in str(memory_panel._fetch({"fetch": model, "revision": revision}))


def test_a_hub_that_does_not_answer_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match="does not answer"):
        shapes.fetch("owner/model")


def test_the_command_line_fetches_it_on_request(hub: str) -> None:
    without = CliRunner().invoke(main, ["forecast", "--model", "owner/model"])
    assert without.exit_code != 0
    with_it = CliRunner().invoke(main, ["forecast", "--model", "owner/model", "--fetch-config"])
    assert (with_it.exit_code, "Fits" in with_it.output) == (0, True), with_it.output
