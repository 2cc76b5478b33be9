"""Rows are rendered and checked before a run is queued, in a process that a template cannot harm."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trained
from chat_models import chat, write_rows
from environment import use

from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.limited import Limits
from worker.allowed_paths import EVERYTHING
from worker.machine import programs
from worker.machine.programs import Program, Result
from worker.runs import rows_check, submit

NO_END = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ENDLESS = "{% for a in range(99999) %}\n{% for b in range(99999) %}{% endfor %}\n{% endfor %}"
ROWS = [chat("Hi", f"Hello {number}") for number in range(8)]


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> Path:
    return trained.model("llama")


@pytest.fixture
def config(home: Path, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A function from settings to a run's configuration, in an installation that checks rows."""
    use(monkeypatch, DATA_DIR=str(home), CHECK_TEMPLATES="true")
    data = write_rows(tmp_path / "rows.jsonl", ROWS)
    return lambda **settings: RunConfig.model_validate(
        {"model": str(model), "data": str(data), "max_length": 64, "micro_batch_size": 2} | settings
    )


def test_a_fault_prevents_the_start_unless_the_check_only_warns(config: Any, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(NO_END)
    faulty = {"chat_template": str(tmp_path / "chat.jinja")}
    with pytest.raises(ConfigError, match=r"rows.jsonl: Row 1.*no end token.*end_token_never_written") as raised:
        submit.submit(config(**faulty))
    (problem,) = raised.value.problems
    assert problem.field == "chat_template" and "template_check to warn" in problem.fix
    run = submit.submit(config(**faulty, template_check="warn"))
    assert run.config["chat_template"] == NO_END


def test_a_template_that_does_not_end_is_ended(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "TEMPLATE_CHECK", replace(programs.TEMPLATE_CHECK, seconds=3))

    (checked,) = rows_check.check_rows(config(chat_template=ENDLESS), EVERYTHING)
    (error,) = checked.report.errors
    assert error.fault == "cannot_render" and "endless loop" in error.fix


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chat_template": "missing.jinja"}, "neither a Jinja template nor an existing file"),
        ({"chat_template": "{% for %}"}, r"not valid Jinja: line 1"),
        ({"chat_template": f"{'{# a #}' * 400}\n{{% for %}}"}, r"not valid Jinja: line 2"),
        ({"chat_template": "{{ -" + "-" * 65_000 + "1 }}"}, r"not valid Jinja: is nested too deeply"),
        ({"task": "pretraining"}, "does not train answers"),
        ({"model": "someone/unknown"}, "no tokenizer in a folder"),
        ({"data": "missing.jsonl"}, "neither a file nor a data set id"),
    ],
)
def test_what_cannot_be_checked_is_named(config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rows_check.check_rows(config(**settings), EVERYTHING)


def test_a_known_report_needs_no_second_process(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rows_check.check_rows(config(), EVERYTHING)
    monkeypatch.setattr(rows_check.programs, "run_limited", None)
    assert rows_check.check_rows(config(), EVERYTHING) == first
    with pytest.raises(TypeError):  # other settings, another check
        rows_check.check_rows(config(loss_on="last"), EVERYTHING)


def test_a_killed_check_prevents_no_start_and_is_not_remembered(
    config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As of a machine without memory: it says nothing about the rows."""
    run_limited = programs.run_limited

    def killed(program: Program, arguments: list[str], limits: Limits, **options: Any) -> Result:
        if program is not programs.TEMPLATE_CHECK:
            return run_limited(program, arguments, limits, **options)
        (order := tmp_path / "order.txt").write_text("killed")
        hostile = replace(program, module="tests.programs.hostile_reader")
        return run_limited(hostile, [str(order)], hostile.limits(order), **options)

    with monkeypatch.context() as short:
        short.setattr(programs, "run_limited", killed)
        (checked,) = rows_check.check_rows(config(), EVERYTHING)
        (finding,) = checked.report.errors
        assert (finding.fault, "was killed" in finding.message) == ("not_checked", True)
        assert submit.submit(config()).config["data"]
    (checked,) = rows_check.check_rows(config(), EVERYTHING)
    assert not checked.report.errors
