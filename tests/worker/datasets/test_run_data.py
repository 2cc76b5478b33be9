"""Several data sets of a run in the store: taken in, found again, checked, kept while a run needs them."""

import json
from pathlib import Path

import pytest

from training.config.data_sets import sources
from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from worker.datasets import datasets, run_data
from worker.datasets.datasets import DatasetInUse
from worker.runs import requests, submit
from worker.runs.lineage import lineage_of
from worker.runs.settle import resolve, settle
from worker.settings import ROOT
from worker.store import database as db
from worker.store import uses

MODEL = str(ROOT / "static" / "starter")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    rows = {
        "chat": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        "pairs": {"prompt": "a", "completion": "b"},
        "nested": {"qa": {"question": "a", "answers": [{"text": "b"}]}},
    }
    for name, row in rows.items():
        (tmp_path / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * 4)
    return {name: tmp_path / f"{name}.jsonl" for name in rows}


def mixture(files: dict[str, Path], *names: str, **more: object) -> RunConfig:
    found = [{"path": str(files[name]), "weight": number + 1} for number, name in enumerate(names)]
    return parse({"model": MODEL, "data": found, "eval_split": 0} | more)


def test_every_set_is_stored_with_its_name(database: str, files: dict[str, Path]) -> None:
    run = submit.submit(mixture(files, "chat", "pairs", validation_data=str(files["pairs"])))
    chat, pairs = sources(run.config["data"])
    assert (chat.name, chat.weight, pairs.name, pairs.weight) == ("chat.jsonl", 1, "pairs.jsonl", 2)
    assert run.config["validation_data"] == pairs.path and run.dataset_id == chat.path
    assert list(run.fingerprints) == ["data", "data 2", "validation_data"]
    assert run.name == "starter on chat.jsonl + pairs.jsonl"
    resolved = resolve(RunConfig.model_validate(run.config))
    assert [Path(source.path).read_bytes() for source in resolved.sources] == [
        files["chat"].read_bytes(), files["pairs"].read_bytes()
    ]  # fmt: skip
    with db.read() as session:
        roles = [(source.role, source.name) for source in lineage_of(session=session, run=run).data]
    assert roles == [
        ("Training data", "chat.jsonl"), ("Training data", "pairs.jsonl"), ("Held-out data", "pairs.jsonl")
    ]  # fmt: skip


def test_the_second_set_cannot_be_deleted_while_a_run_waits(database: str, files: dict[str, Path]) -> None:
    run = submit.submit(mixture(files, "chat", "pairs"))
    second = sources(run.config["data"])[1].path
    with db.read() as session:
        assert [use.id for use in uses.dataset_users(session=session)[second]] == [run.id]
    with pytest.raises(DatasetInUse), db.write() as session:
        datasets.delete(session=session, dataset_id=second)


def test_a_deleted_set_is_named_at_the_start(database: str, files: dict[str, Path]) -> None:
    run = submit.submit(mixture(files, "chat", "pairs"))
    requests.stop(run.id)
    second = sources(run.config["data"])[1].path
    with db.write() as session:
        datasets.delete(session=session, dataset_id=second)
    with pytest.raises(ConfigError, match="was deleted"):
        resolve(RunConfig.model_validate(run.config))


def test_each_set_has_its_own_mapping(database: str, files: dict[str, Path]) -> None:
    columns = "prompt=qa.question, completion=qa.answers.0.text"
    data = [{"path": str(files["chat"])}, {"path": str(files["nested"]), "columns": columns}]
    run = submit.submit(parse({"model": MODEL, "data": data, "eval_split": 0}))
    assert [source.columns for source in sources(run.config["data"])] == [None, columns]
    assert run.config["columns"] is None


def test_every_wrong_set_is_named(database: str, files: dict[str, Path]) -> None:
    data = [str(files["chat"]), "nowhere.jsonl", "gone.jsonl"]
    config = parse({"model": MODEL, "data": data})
    found = list(run_data.problems(settle(config).data, config))
    assert [problem.value for problem in found] == ["nowhere.jsonl", "gone.jsonl"]
    with pytest.raises(ConfigError) as caught:
        submit.submit(config)
    assert [problem.value for problem in caught.value.problems] == ["nowhere.jsonl", "gone.jsonl"]
    with pytest.raises(ConfigError, match="no known format"):
        submit.submit(mixture(files, "chat", "nested"))
    with db.read() as session:
        assert datasets.listing(session=session) == []


def test_the_same_content_twice_is_refused(database: str, files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "copy.jsonl").write_bytes(files["chat"].read_bytes())
    config = mixture(files | {"copy": tmp_path / "copy.jsonl"}, "chat", "copy")
    with pytest.raises(ConfigError, match="same content"):
        submit.submit(config)


def test_streaming_takes_one_set(database: str, files: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="Streaming reads one data set"):
        submit.submit(mixture(files, "chat", "pairs", streaming=True))


CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"text": "a", "label": "b" * 300}] * 4, "answers of up to 300 characters in the place of classes"),
        ([CHAT] * 4, "no row with a class"),
        ([{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}], ""),
    ],
)
def test_free_text_is_refused_as_classes(database: str, tmp_path: Path, rows: list[object], words: str) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    item = datasets.add_file(path=tmp_path / "rows.jsonl", name="rows.jsonl")
    config = parse({"model": MODEL, "data": item.id, "task": "classification", "eval_split": 0})
    found = [problem.message for problem in run_data.problems(settle(config).data, config)]
    assert [words in message for message in found] == ([True] if words else [])


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        ('{"prompt": "a", "completion": 5}\n', None, "completion is a number (5), not text"),
        ('{"question": "a", "reply_text": 1}\n', None, "known format"),
        ('{"prompt": "a", "completion": "b"}\n', "prompt=none, completion=completion", "none is missing"),
        ('{"prompt": "a", "completion": "b"}\n', None, ""),
    ],
)
def test_a_file_is_refused_before_start_as_at_start(
    database: str, tmp_path: Path, text: str, columns: str | None, words: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(text * 3)
    config = parse({"model": MODEL, "data": str(tmp_path / "rows.jsonl"), "columns": columns, "eval_split": 0})
    before = list(run_data.problems(settle(config).data, config))
    if not words:
        assert before == []
        return
    with pytest.raises(ConfigError) as caught:
        submit.submit(config)
    assert words in before[0].message
    assert [problem.message for problem in caught.value.problems] == [problem.message for problem in before]


def test_a_changed_file_is_read_again(database: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "completion": 5}\n' * 3)
    config = parse({"model": MODEL, "data": str(path), "eval_split": 0})
    assert list(run_data.problems(settle(config).data, config))
    path.write_text('{"prompt": "a", "completion": "5"}\n' * 3)
    assert list(run_data.problems(settle(config).data, config)) == []


def test_a_large_file_is_left_for_start(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_data, "MOST_READ_BYTES", 10)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": 5}\n')
    config = parse({"model": MODEL, "data": str(tmp_path / "rows.jsonl"), "eval_split": 0})
    assert list(run_data.problems(settle(config).data, config)) == []


@pytest.mark.parametrize("mapping", [None, "prompt=prompt"])
def test_prompts_without_answers_need_rewards_that_compare_with_none(
    database: str, tmp_path: Path, mapping: str | None
) -> None:
    file = tmp_path / "prompts.jsonl"
    named = {"prompt": "a", "ground_truth": "b"} | ({"answer": "c"} if mapping else {})
    file.write_text("".join(json.dumps(named | {"level": n}) + "\n" for n in range(8)))
    given = {"model": MODEL, "data": str(file), "columns": mapping, "micro_batch_size": 8, "task": "grpo"}

    def refused(**settings: object) -> list[tuple[str, str]]:
        config = parse({name: value for name, value in (given | settings).items() if value is not None})
        before = list(run_data.problems(settle(config).data, config))
        try:
            submit.submit(config)
        except ConfigError as error:
            assert [one.field for one in error.problems] == [one.field for one in before]
            return [(one.field, f"{one.message} {one.fix}") for one in error.problems]
        assert before == []
        return []

    ((field, words),) = refused(rewards="json_valid, exact_match, contains")
    assert field == "rewards" and "the rows are prompts without one" in words and "completion=COLUMN" in words
    judge = {"reward": "judge", "url": "http://localhost:1/v1", "model": "m"}
    ((field, words),) = refused(rewards=json.dumps([judge]))
    assert field == "rewards" and "a judge without {expected} in its prompt" in words
    ((field, words),) = refused(rewards="json_valid", eval_answers=2)
    assert field == "eval_answers" and "Set it to 0" in words
    ((field, words),) = refused(task="sft")
    assert field == "data" and "needs prompts with answers" in words and "grpo, distill" in words
    contains = json.dumps([{"reward": "contains", "text": "yes"}])
    assert (
        refused(rewards=contains)
        == []
        == refused(rewards="exact_match", columns="prompt=prompt, completion=ground_truth")
    )
