"""Out-of-memory reports: position in the run, rows, and memory contents."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from played_run import PlayedRun
from tiny import make_model
from trainer_process import start, train_here

from app.cli.runs.show import page
from app.documents.run import document
from app.pages.run import attempts as run_attempts
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.reports.live_memory import counted_memory
from training.reports.out_of_memory import part_of_step, requested
from training.reports.out_of_memory import reporting_out_of_memory as reported
from training.reports.report import Report
from training.run_folder import memory_words
from training.run_folder.events import OutOfMemory, decode
from worker.store import database as db
from worker.store import runs
from worker.store.runs import NotResumable
from worker.store.tables import Status
from worker.supervision.outcome import Ending, judge
from worker.supervision.report_reader import AttemptProgress

LONG_ROW = 9
SETTINGS: dict[str, Any] = {
    "method": "full",
    "epochs": 1,
    "max_steps": None,
    "eval_split": 0,
    "eval_steps": 0,
    "save_steps": 0,
    "max_length": 480,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "packing": "none",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "model"), rows(folder / "rows.jsonl", long_row=LONG_ROW)


def rows(file: Path, long_row: int | None) -> Path:
    result = [{"prompt": f"row {row}: ", "completion": "abc" * (1 + row % 5)} for row in range(24)]
    if long_row is not None:
        result[long_row]["completion"] = "x" * 400
    file.write_text("\n".join(json.dumps(row) for row in result))
    return file


def told(folder: Path) -> OutOfMemory:
    with (folder / "events.jsonl").open("rb") as lines:
        (result,) = [event for line in lines if isinstance(event := decode(line), OutOfMemory)]
    return result


def ran_out(folder: Path, *inputs: Path, **settings: Any) -> OutOfMemory:
    with pytest.raises(torch.OutOfMemoryError):
        train_here(folder, *inputs, **SETTINGS | settings)
    return told(folder)


@pytest.mark.train
def test_an_oom_report_of_a_step_has_its_rows_and_the_memory_contents(
    tmp_path: Path, inputs: tuple[Path, Path]
) -> None:
    report = ran_out(tmp_path, *inputs, memory_limit=8)
    assert (report.phase, report.part, report.rank) == ("training", "forward", 0)
    (batch,) = report.batches
    assert LONG_ROW + 1 in batch["rows"] and max(batch["tokens"]) > 400
    assert report.tensors[0]["name"] == "input_ids" and report.tensors[0]["shape"] == [2, 408]
    assert report.memory["limit"] == 8 * 2**20
    assert 0 <= report.memory["limit"] - report.memory["allocated"] < report.requested_bytes + 2**14
    weights, optimizer = report.kinds["weights"], report.kinds.get("optimizer", 2 * report.kinds["weights"])
    assert optimizer == pytest.approx(2 * weights, rel=0.1)
    assert report.largest[0]["bytes"] >= report.largest[-1]["bytes"] > 0
    assert report.requested_bytes and report.requested_bytes < 2**22


@pytest.mark.train
def test_an_oom_report_of_an_evaluation_has_its_held_out_rows(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    short = rows(tmp_path / "short.jsonl", long_row=None)
    settings = {"validation_data": str(inputs[1]), "eval_steps": 1, "max_steps": 2, "memory_limit": 3}
    report = ran_out(tmp_path / "run", inputs[0], short, **settings)
    assert (report.phase, report.part, report.step, report.micro_step) == ("evaluating", "evaluation", 1, 5)
    assert report.batches[0]["rows"] == [9, 10]
    assert memory_words.summary(report).startswith(
        "Memory limit exceeded on rank 0 in batch 5 of the evaluation after step 1"
    )


def test_weights_that_do_not_fit_are_reported_while_loading(tmp_path: Path) -> None:
    report = Report(tmp_path, rank=0)
    report.enter("loading model")
    config = RunConfig(model="m", data="d")
    with pytest.raises(torch.OutOfMemoryError), counted_memory(2**20), reported(report, config, Machine()):
        torch.empty(2**20)
    result = told(tmp_path)
    assert (result.phase, result.part, result.batches, result.step_down) == ("loading model", "", [], None)
    assert result.requested_bytes == 2**22


@pytest.mark.train
def test_the_failed_rank_reports_the_rows_of_all_ranks(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    run = start(tmp_path / "run", *inputs, **SETTINGS, strategy="ddp", num_processes=2, memory_limit=9)
    assert run.finish() != 0
    report = told(run.run_dir)
    assert [batch["rank"] for batch in report.batches] == [0, 1]
    assert LONG_ROW + 1 in report.batches[report.rank]["rows"]
    assert len({row for batch in report.batches for row in batch["rows"]}) == 4


def test_the_traceback_gives_the_part_of_a_step() -> None:
    def forward() -> None:
        raise torch.OutOfMemoryError("Tried to allocate 1.50 GiB.")

    def backward() -> None:
        forward()  # recomputes a layer

    def part(training_step: Any) -> str:
        def training_step_() -> None:
            training_step()

        training_step_.__code__ = training_step_.__code__.replace(co_name="training_step")
        with pytest.raises(torch.OutOfMemoryError) as raised:
            training_step_()
        assert requested(raised.value) == 3 * 2**29
        return part_of_step(raised.value)

    assert (part(forward), part(backward)) == ("forward", "backward")


REPORT = OutOfMemory(
    rank=1,
    device="cuda",
    phase="training",
    policy="ask",
    part="backward",
    step=12,
    micro_step=2,
    requested_bytes=2**31,
    tensors=[{"name": "input_ids", "shape": [2, 4096], "dtype": "int64", "bytes": 2**16}],
    batches=[{"rank": 0, "rows": [3, 8], "tokens": [19, 7]}, {"rank": 1, "rows": [4, 24], "tokens": [12, 4090]}],
    memory={"allocated": 15 * 2**30, "limit": 2**34},
    kinds={"weights": 2**33},
    largest=[{"kind": "weights", "shape": [4096, 4096], "dtype": "float16", "count": 200, "bytes": 200 * 2**25}],
    step_down={"micro_batch_size": 1, "gradient_accumulation_steps": 4},
)


@pytest.fixture
def failed_run(database: str) -> PlayedRun:
    """A run that is out of memory, with policy ask."""
    seen = AttemptProgress(out_of_memory=REPORT, phase="training")
    verdict = judge(seen, Ending(exit_code=1))
    played = PlayedRun(micro_batch_size=2, gradient_accumulation_steps=2, on_out_of_memory="ask").claim().report(REPORT)
    return played.end(Status.FAILED, reason=verdict.reason, error=verdict.error)


def test_a_report_is_stored_with_its_attempt_and_shown_as_a_sentence(failed_run: PlayedRun) -> None:
    with db.read() as session:
        values = document(session, failed_run.id).model_dump(mode="json")
        (attempt,) = runs.attempts(session=session, run_id=failed_run.id)
    assert values["attempts"][0]["out_of_memory"]["batches"] == asdict(REPORT)["batches"]
    for words in (page(values, 0), str(run_attempts.listed([attempt], explained=False))):
        assert (
            "Out of GPU memory on rank 1 in the backward pass of step 12, micro step 2. Tried to allocate 2.0 GiB"
            in words
        )
        assert "row 24 (4,090 tokens), row 4 (12 tokens)" in words
        assert "200 of 4,096 x 4,096 float16 (weights), 6.2 GiB" in words


def test_a_run_with_policy_ask_resumes_with_less_memory(failed_run: PlayedRun) -> None:
    less = "micro batch size 1, gradient accumulation 4"
    assert run_attempts.proposal(failed_run.row, continues=True) == f"Resume with {less}"
    assert run_attempts.proposal(failed_run.row, continues=False) == f"Train from the start with {less}"
    with db.write() as session:
        runs.resume(session=session, run_id=failed_run.id, step_down=True)
    assert failed_run.claim().row.stepped_down == REPORT.step_down
    with db.read() as session:
        assert f"with {less}: running" in page(document(session, failed_run.id).model_dump(mode="json"), 0)
        assert runs.attempts(session=session, run_id=failed_run.id)[1].stepped_down == REPORT.step_down


def test_a_run_with_policy_ask_resumes_with_its_own_settings(failed_run: PlayedRun) -> None:
    with db.write() as session:
        runs.resume(session=session, run_id=failed_run.id)
    assert failed_run.row.stepped_down == {}


def test_step_down_needs_a_proposed_rung(database: str) -> None:
    played = PlayedRun().claim().end(Status.FAILED, error={"message": "Something else."})
    with db.write() as session, pytest.raises(NotResumable, match="no settings proposed"):
        runs.resume(session=session, run_id=played.id, step_down=True)
