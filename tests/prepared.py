"""An installation with runs, a sweep, evaluations and data sets, made once in a process and copied for each test."""

import atexit
import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from environment import use
from machines import gpu, machine
from paths import ROOT
from played_run import PlayedRun
from run_files import checkpoint

from training.run_folder.events import CheckpointSaved, Metrics, Note, PhaseStarted, SampleDrawn
from training.scoring.intervals import mean_interval
from worker.datasets import datasets
from worker.diagnosis.diagnosis import diagnose
from worker.evaluations import submit
from worker.settings import get_settings
from worker.store import accounts, database, evaluations, served_models
from worker.store.tables import Status
from worker.sweeps import lifecycle
from worker.sweeps.spec import parse_sweep

STARTER = ROOT / "static" / "starter"
LOG = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."
ROWS = 40
ANSWERS = 200
RIGHT = {"base": 60, "result": 100}  # answers of each evaluation that are right: the first ones


@dataclass(frozen=True)
class Prepared:
    """The data folder and the ids in it. `dataset` belongs to alice; the rest to the server's user."""

    home: Path
    dataset: str
    heldout: str
    finished: str  # "sums", on `dataset`: metrics, a sample, log, checkpoint, adapter and both evaluations
    failed: str  # "letters", on `dataset`: a diagnosed out-of-memory error
    waiting: str
    sweep: str  # two queued runs
    base: str  # the evaluation of the base model on `heldout`, and that of the result
    result: str
    served: str
    tokens: dict[str, str]  # of alice, bob and carol, who is an admin


@pytest.fixture(name="prepared")
def prepared_installation(home: Path) -> Prepared:
    """A copy for a test, which may change it."""
    return copied(home)


def copied(home: Path) -> Prepared:
    """A copy in the data folder `home`."""
    shutil.copytree(_original().home, home, dirs_exist_ok=True)
    return replace(_original(), home=home)


@cache
def _original() -> Prepared:
    folder = Path(tempfile.mkdtemp(prefix="lathe-prepared-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    database.dispose()
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(monkeypatch, DATA_DIR=str(folder / "home"))
        get_settings().make_folders()
        database.migrate()
        made = _make(folder)
        database.dispose()
    get_settings.cache_clear()
    return made


def _make(folder: Path) -> Prepared:
    with database.write() as session:
        tokens = {
            name: accounts.add(session=session, name=name, admin=name == "carol") for name in ("alice", "bob", "carol")
        }
    dataset = datasets.add_file(path=_rows(folder / "sums.jsonl", 0), name="sums.jsonl", owner="alice").id
    heldout = datasets.add_file(path=_rows(folder / "heldout.jsonl", ROWS), name="heldout.jsonl").id
    finished = PlayedRun("sums", data=dataset).claim()
    finished.report(
        PhaseStarted(phase="training"), Metrics(step=1, values={"loss": 2.5, "grad_norm": None, "tokens": 10.0})
    )
    finished.report(
        Metrics(step=1, rank=0, values={"host_rss": 5e9}), CheckpointSaved(step=1, path="checkpoint-1", bytes=10)
    )
    texts = {"prompt": "1", "expected": "2", "text": "3", "file": "sums.jsonl"}
    finished.report(
        SampleDrawn(
            step=1, sample=0, group=0, row=0, **texts, tokens=1, ended=True, scores={"contains": 0.0}, reward=0.0, advantage=0.0
        )
    )  # fmt: skip
    finished.report(Note(message="a note")).prints(*[f"line {n}" for n in range(5)], "[rank0]: a warning").end()
    checkpoint(finished.id, 1)
    adapter = get_settings().runs_dir / finished.id / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    failed = PlayedRun("letters", data=dataset, lora_r=4).claim().prints(LOG)
    diagnosis = diagnose(LOG).document()
    failed.end(Status.FAILED, reason="it broke", error={"message": "it broke", "traceback": "", "diagnosis": diagnosis})
    waiting = PlayedRun("waiting").id
    config = {"model": str(STARTER), "data": dataset}
    sweep = lifecycle.start(parse_sweep({"config": config, "space": {"lora_r": [4, 8]}})).id
    machine("node1", devices=[gpu("node1", 0), gpu("node1", 1)])
    with database.write() as session:
        served = served_models.create(session=session, models=[f"{finished.id}:base"], owner="local").id
    base, result = (evaluated(finished.id, heldout, source, right) for source, right in RIGHT.items())
    return Prepared(
        folder / "home", dataset, heldout, finished.id, failed.id, waiting, sweep, base, result, served, tokens
    )


def _rows(file: Path, first: int) -> Path:
    rows = ({"prompt": f"{n}", "completion": f"{n + 1}"} for n in range(first, first + ROWS))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def evaluated(run: str, data: str, source: str, right: int) -> str:
    """An evaluation as its supervisor leaves it: of its answers, the first `right` are right."""
    item = submit.submit(run, {"source": source, "metrics": ["exact_match"]}, data=data)
    scores = [float(row < right) for row in range(ANSWERS)]
    low, high = mean_interval(scores)
    metrics = {"exact_match": {"mean": right / ANSWERS, "low": low, "high": high, "rows": ANSWERS}}
    with database.write() as session:
        claim = {"owner": "host:1:1", "device": "host/cpu", "lease_seconds": 60}
        assert evaluations.claim(session=session, evaluation_id=item.id, **claim)
        summary = {"rows": ANSWERS, "metrics": metrics}
        evaluations.finish(session=session, evaluation_id=item.id, attempt=1, status=Status.FINISHED, summary=summary)
    folder = submit.folder_of(item)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "answers.jsonl").open("w") as answers:
        for row, score in enumerate(scores):
            answer = {"row": row, "prompt": "p", "expected": "x", "answer": "x" if score else source}
            answers.write(json.dumps(answer | {"scores": {"exact_match": score}}) + "\n")
    return item.id
