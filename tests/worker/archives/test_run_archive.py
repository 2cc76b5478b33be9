"""A whole run as one file: another Lathe imports it as it was, and a broken file changes nothing."""

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import pytest
from commands import lathe
from played_run import SUMMARY, PlayedRun
from sqlmodel import SQLModel, func, select

from training.run_folder.events import Metrics, Note, SampleDrawn
from training.run_folder.record import Lineage
from training.run_folder.stages import Saved
from training.scoring.request import EvaluationRequest, evaluation_dir
from worker.archives import restore, run_archive
from worker.archives.restore import BadArchive
from worker.settings import get_settings
from worker.store import database, evaluations, history, runs, samples, series
from worker.store.runs import NotEnded
from worker.store.tables import Attempt, LogLine, Metric, MetricRollup, Run, RunEvent, Sample, Status

STEPS = 40
SAMPLE = SampleDrawn(
    step=1, sample=3, group=1, row=6, file="rows.jsonl", prompt="naïve?", expected="yes", text="no\u2028", tokens=2, ended=False,
    scores={"city": None, "json": 0.5}, reward=0.5, advantage=-1.0,
)  # fmt: skip


@pytest.fixture
def finished(home: Path) -> PlayedRun:
    """A finished run with metrics, notes, a log and an adapter."""
    run = PlayedRun("écriture", lora_r=4).claim()
    run.report(*[Metrics(step=step, values={"loss": 1 / step, "grad_norm": None}) for step in range(1, STEPS + 1)])
    run.report(Note(message="a note"), Metrics(step=1, rank=0, values={"host_rss": 5.0}))
    run.report(SAMPLE)
    answers = SUMMARY["answers"] | {"changes": {"f1": {"better": 3, "worse": 0}}}
    run.prints("first line", "second line: 中文").end(
        summary=SUMMARY | {"answers": answers, "parity": {"adapter": "equal"}}
    )
    with database.write() as session:
        runs.describe(session=session, run_id=run.id, tags=["paper"], notes="the good one")
    folder = get_settings().runs_dir / run.id
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter/adapter_model.safetensors").write_bytes(bytes(range(256)) * 4000)
    (folder / "adapter/training_args.bin").write_bytes(b"pickle")
    (folder / "answers.jsonl").write_text("{}\n")
    Lineage(run.id, "écriture", "parent", 1).write(folder)
    return run


@pytest.fixture
def packed(finished: PlayedRun, tmp_path: Path) -> Path:
    path = tmp_path / "run.lathe.zip"
    path.write_bytes(b"".join(run_archive.packed(finished.id)))
    return path


@pytest.fixture
def evaluated(finished: PlayedRun) -> str:
    """The id of a finished evaluation of the run."""
    mean = {"mean": 0.5, "low": 0.1, "high": 0.9, "rows": 2}
    request = EvaluationRequest(path="/here/rows.jsonl", name="rows.jsonl", sha256="a" * 64, metrics=("exact_match",))
    with database.write() as session:
        document = request.model_dump(mode="json")
        item = evaluations.create(session=session, run_id=finished.id, request=document, owner="local")
        evaluations.create(session=session, run_id=finished.id, request=document, owner="local")  # queued
        held = {"session": session, "evaluation_id": item.id}
        evaluations.claim(**held, owner="host:1:1", device="host/cpu", lease_seconds=60)
        summary = {"rows": 2, "metrics": {"exact_match": mean}}
        evaluations.finish(**held, attempt=1, status=Status.FINISHED, summary=summary)
    folder = evaluation_dir(get_settings().runs_dir / finished.id, item.id)
    folder.mkdir(parents=True)
    (folder / "answers.jsonl").write_text('{"row": 0}\n')
    return item.id


def test_evaluations_are_imported_with_their_answers_under_a_new_id_if_theirs_is_taken(
    finished: PlayedRun, evaluated: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.lathe.zip"
    path.write_bytes(b"".join(run_archive.packed(finished.id)))
    restored = restore.restore(path, owner="alice")
    with database.read() as session:
        (item,) = evaluations.of_run(session=session, run_id=restored.id)
        known = evaluations.get(session=session, evaluation_id=evaluated)
    assert item.id != evaluated
    assert (item.owner, item.status, item.summary) == ("alice", Status.FINISHED, known.summary)
    assert item.request == known.request | {"path": ""}
    copied = evaluation_dir(get_settings().runs_dir / restored.id, item.id) / "answers.jsonl"
    assert copied.read_text() == '{"row": 0}\n'


def forget(run_id: str) -> None:
    with database.write() as session:
        runs.delete(session=session, run_id=run_id)
    shutil.rmtree(get_settings().runs_dir / run_id, ignore_errors=True)


def state() -> dict[str, Any]:
    """The number of rows of every table, and the run folders."""
    tables: list[type[SQLModel]] = [Run, Attempt, Metric, MetricRollup, RunEvent, LogLine, Sample]
    with database.read() as session:
        counts = {table.__name__: session.exec(select(func.count()).select_from(table)).one() for table in tables}
    return counts | {"folders": sorted(path.name for path in get_settings().runs_dir.iterdir())}


def contents(run_id: str) -> dict[str, Any]:
    """All that the pages show of a run."""
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        return {
            "row": run.model_dump(include=set(run_archive.RUN_FIELDS) - {"id"}),
            "attempts": [one.model_dump(exclude={"run_id"}) for one in runs.attempts(session=session, run_id=run_id)],
            "series": [vars(line) for line in series.series(session=session, run_id=run_id, points=10)],
            "events": [(one.kind, one.message, one.time) for one in history.events(session=session, run_id=run_id)],
            "samples": [
                [one.model_dump(exclude={"run_id"}) for one in group]
                for group in samples.groups(session=session, run_id=run_id, wanted=samples.Wanted())[0]
            ],
            "log": [(one.text, one.attempt) for one in history.log_tail(session=session, run_id=run_id)],
        }


def test_an_imported_run_is_as_it_was(finished: PlayedRun, packed: Path) -> None:
    before = contents(finished.id)
    assert before["samples"][0][0]["text"] == SAMPLE.text
    forget(finished.id)
    restored = restore.restore(packed, owner="alice")
    assert restored.id == finished.id
    assert contents(restored.id) == before
    folder = get_settings().runs_dir / restored.id
    assert (folder / "adapter/adapter_model.safetensors").read_bytes() == bytes(range(256)) * 4000
    assert (folder / "answers.jsonl").read_text() == "{}\n"
    assert {path.name for path in (folder / "adapter").iterdir()} == {"adapter_model.safetensors"}
    assert (folder / "adapter.zip").is_file()
    with database.read() as session:
        assert runs.get(session=session, run_id=restored.id).owner == "alice"


def test_what_an_imported_run_has_left_after_its_training_can_be_done(home: Path, tmp_path: Path) -> None:
    run = PlayedRun().claim().end(summary=SUMMARY | {"undone": {"describing": "It was killed."}})
    result = get_settings().runs_dir / run.id / "model"
    result.mkdir(parents=True)
    (result / "config.json").write_text("{}")
    (result / "model.safetensors").write_bytes(bytes(100))
    path = tmp_path / "run.zip"
    path.write_bytes(b"".join(run_archive.packed(run.id)))
    restored = restore.restore(path)
    assert restored.resumable
    folder = get_settings().runs_dir / restored.id
    saved = Saved.read(folder)
    assert saved and [stage.phase for stage in saved.left(restored.used, folder)] == ["describing"]
    assert saved.summary == SUMMARY
    (folder / "stages.json").write_text('{"outcome": "finished", "summary": {}, "done": null}')
    assert Saved.read(folder) is None


def test_an_archive_without_samples_is_one_that_earlier_versions_wrote_and_read(home: Path, tmp_path: Path) -> None:
    run = PlayedRun().claim().end()
    path = tmp_path / "run.zip"
    path.write_bytes(b"".join(run_archive.packed(run.id)))
    with ZipFile(path) as source:
        assert "samples.jsonl" not in source.namelist()
    assert contents(restore.restore(path).id)["samples"] == []


def test_a_taken_id_is_replaced_and_the_other_run_is_unchanged(finished: PlayedRun, packed: Path) -> None:
    before = contents(finished.id)
    restored = restore.restore(packed)
    assert restored.id != finished.id
    assert contents(finished.id) == contents(restored.id) == before
    assert Lineage.read(get_settings().runs_dir / restored.id).run == restored.id


def test_a_running_run_is_not_archived(home: Path) -> None:
    run = PlayedRun().claim()
    with pytest.raises(NotEnded, match="is running"):
        run_archive.packed(run.id)


def test_secrets_in_the_log_are_not_in_the_archive(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "very-secret-key")
    run = PlayedRun().claim().prints("key very-secret-key").end(Status.FAILED, error={"message": "very-secret-key"})
    path = tmp_path / "run.zip"
    path.write_bytes(b"".join(run_archive.packed(run.id)))
    with ZipFile(path) as source:
        assert not [name for name in source.namelist() if b"very-secret-key" in source.read(name)]


Change = Callable[[dict[str, bytes]], None]


def row(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Changes the archive's document."""

    def edit(members: dict[str, bytes]) -> None:
        document = json.loads(members["lathe-run.json"])
        change(document)
        members["lathe-run.json"] = json.dumps(document).encode()

    return edit


def member(name: str, content: bytes = b"x") -> Change:
    return lambda members: members.update({name: content})


METRIC = b'{"name": "loss", "rank": -1, "step": %s, "time": 0}\n'
BROKEN = {
    "no run": lambda members: members.pop("lathe-run.json"),
    "no metrics": lambda members: members.pop("metrics.jsonl"),
    "newer schema": row(lambda document: document.update(schema=99)),
    "not json": member("lathe-run.json", b"{"),
    "a list": member("lathe-run.json", b"[]"),
    "running": row(lambda document: document["run"].update(status="running")),
    "unknown status": row(lambda document: document["run"].update(status="burnt")),
    "id with a path": row(lambda document: document["run"].update(id="../../x")),
    "wrong setting": row(lambda document: document["run"]["config"].update(lora_r=-1)),
    "missing field": row(lambda document: document["run"].pop("config")),
    "wrong metric": member("metrics.jsonl", b'{"name": "loss", "rank": -1, "step": "x", "time": 0}\n'),
    "the same metric twice": member("metrics.jsonl", 2 * (METRIC % b"1")),
    "a step too large": member("metrics.jsonl", METRIC % b"99999999999999999999"),
    "the same sample twice": member("samples.jsonl", 2 * (json.dumps(vars(SAMPLE)).encode() + b"\n")),
    "a sample without scores": member("samples.jsonl", json.dumps(vars(SAMPLE) | {"scores": "none"}).encode()),
    "late broken log": member("log.jsonl", b'{"attempt": 1, "time": 1, "text": "a"}\n' * 5000 + b"{\n"),
    "path outside": member("files/../../outside.txt"),
    "absolute path": member("files//etc/outside.json"),
    "backslash": member("files/adapter\\..\\outside.json"),
    "a pickle": member("files/adapter/model.bin"),
    "a checkpoint": member("files/checkpoints/x.json"),
    "beside the files": member("outside.json"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_archive_changes_nothing(finished: PlayedRun, packed: Path, tmp_path: Path, name: str) -> None:
    with ZipFile(packed) as source:
        members = {one: source.read(one) for one in source.namelist()}
    BROKEN[name](members)
    broken = tmp_path / "broken.zip"
    with ZipFile(broken, "w") as target:
        for one, content in members.items():
            target.writestr(one, content)
    before = state()
    with pytest.raises(BadArchive) as caught:
        restore.restore(broken)
    assert caught.value.problem.value == str(broken)
    assert state() == before
    assert not list(tmp_path.rglob("outside*"))


def test_a_link_is_refused(packed: Path) -> None:
    link = ZipInfo("files/adapter/link.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with ZipFile(packed, "a") as target:
        target.writestr(link, "/etc/passwd")
    with pytest.raises(BadArchive, match="a file that no run has"):
        restore.restore(packed)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_archive_changes_nothing(packed: Path, share: float) -> None:
    content = packed.read_bytes()
    packed.write_bytes(content[: int(len(content) * share)])
    before = state()
    with pytest.raises(BadArchive, match="not a complete ZIP"):
        restore.restore(packed)
    assert state() == before


def test_damaged_weights_are_noticed(packed: Path) -> None:
    content = packed.read_bytes()
    place = content.rindex(bytes(range(200, 256)))
    packed.write_bytes(content[:place] + b"\0" + content[place + 1 :])
    before = state()
    with pytest.raises(BadArchive, match="CRC"):
        restore.restore(packed)
    assert state() == before


def test_an_archive_that_does_not_fit_on_the_disk_is_refused(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(packed)
    monkeypatch.setattr("worker.archives.restore.shutil.disk_usage", lambda _: usage._replace(free=2**20))
    with pytest.raises(BadArchive, match=r"1\.0 MiB are free"):
        restore.restore(packed)


def test_the_commands_write_and_import_a_file(finished: PlayedRun, tmp_path: Path) -> None:
    done = lathe("archive", finished.id, str(tmp_path / "a.zip"))
    assert done.exit_code == 0, done.output
    assert lathe("archive", finished.id, str(tmp_path / "a.zip")).exit_code == 1
    forget(finished.id)
    answer = json.loads(lathe("restore", str(tmp_path / "a.zip"), "--json").stdout)
    assert answer == {"id": finished.id, "name": "écriture"}
    refused = lathe("restore", __file__)
    assert refused.exit_code == 1 and "not a complete ZIP" in refused.stderr
