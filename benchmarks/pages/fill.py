"""Fills a database: a history, long runs, a live run and a data set."""

import json
import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlmodel import Session

from app.web.assets import STATIC
from training.config.run_config import RunConfig
from training.run_folder.events import CheckpointSaved, Event, Metrics, PhaseStarted, Planned
from worker.datasets import datasets
from worker.settings import get_settings
from worker.store import claims, database, runs
from worker.store import history as events
from worker.store.tables import Attempt, Run, Status
from worker.sweeps import lifecycle
from worker.sweeps.spec import parse_sweep

BATCH = 500
_LINE = 200  # characters of a log line
_MODELS = ("Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B", "gpt2")


def history(count: int) -> None:
    """Stores `count` ended runs with what such runs have: results, plan, forecast, errors with log tails."""
    get_settings.cache_clear()
    database.migrate()
    chance = random.Random(7)
    config = RunConfig(model="gpt2", data="alpaca.jsonl").model_dump(mode="json")
    for first in range(0, count, BATCH):
        with database.write() as session:
            ended = [_ended(number, config, chance) for number in range(first, min(first + BATCH, count))]
            session.add_all(ended)
            session.flush()
            session.add_all(map(_attempt, ended))


def queue(count: int, kinds: int) -> None:
    """Queues `count` runs with `kinds` different data sets."""
    with database.write() as session:
        for number in range(count):
            data = f"alpaca-{number % kinds}.jsonl" if number % kinds else "alpaca.jsonl"
            config = RunConfig(model="gpt2", data=data, lora_r=8 + number)
            runs.create(session=session, config=config, dataset_id=None, name=f"waits {number}")


def log(run_id: str, size: int) -> None:
    """Stores `size` bytes of log lines of a run, of 200 characters each."""
    lines = text(
        "INSERT INTO log_line (run_id, attempt, time, text) WITH RECURSIVE numbered(n) AS "
        "(SELECT 1 UNION ALL SELECT n + 1 FROM numbered WHERE n < :count) "
        "SELECT :run_id, 1, 1.76e9 + n, 'step ' || n || :rest FROM numbered"
    )
    values = {"run_id": run_id, "count": size // _LINE, "rest": " {'loss': 1.2345}".ljust(_LINE - 12, ".")}
    with database.write() as session:
        session.connection().execute(lines, values)


def _ended(number: int, config: dict[str, Any], chance: random.Random) -> Run:
    queued = 1.76e9 + number * 60
    failed = chance.random() < 0.2
    return Run(
        id=runs.new_id(queued), name=f"run {number}", status=Status.FAILED if failed else Status.FINISHED,
        config=config | {"model": chance.choice(_MODELS), "method": chance.choice(("lora", "qlora", "full"))},
        created_at=queued, queued_at=queued, position=queued, started_at=queued + 5, finished_at=queued + 605, worked_seconds=600,
        attempt=1,
        step=100, total_steps=100, final_loss=chance.random(), best_loss=chance.random(), peak_bytes=chance.randrange(2**34),
        plan={"target_modules": ["q_proj"] * 100}, forecast={"parts": [1] * 200},
        summary={"tokens_per_second": chance.random() * 1000, "strategy": None},
        error={"message": "failed", "log_tail": "a line of the log\n" * 200} if failed else None,
    )  # fmt: skip


def _attempt(run: Run) -> Attempt:
    assert run.started_at
    begins, ends = run.started_at, run.finished_at
    return Attempt(run_id=run.id, number=1, host="node", started_at=begins, ended_at=ends, outcome=run.status.value)


def long_run(steps: int, ranks: int) -> str:
    """Stores a run that has trained `steps` steps on `ranks` ranks. Returns its id."""
    with database.write() as session:
        run = _claimed(session, f"{steps} steps", f"node{ranks}")
    for first in range(1, steps + 1, BATCH):
        batch = [
            event for step in range(first, min(first + BATCH, steps + 1)) for event in _records(step, steps, ranks)
        ]
        with database.write() as session:
            events.apply(session=session, run_id=run.id, attempt=1, events=batch, new_offset=first)
    with database.write() as session:
        claims.finish(session=session, run_id=run.id, attempt=1, status=Status.FINISHED)
    return run.id


def live_run() -> str:
    """Stores a run that trains, at step 3,000. Returns its id."""
    with database.write() as session:
        run = _claimed(session, "live", "live")
    batch = [event for step in range(1, 3001) for event in _records(step, 100_000, 1)]
    with database.write() as session:
        events.apply(session=session, run_id=run.id, attempt=1, events=batch, new_offset=3000)
    return run.id


@contextmanager
def training(run_id: str) -> Iterator[None]:
    """Stores two steps a second of the live run, as its supervisor would."""
    stop = threading.Event()

    def steps() -> None:
        step = 3001
        while not stop.wait(0.5):
            add_step(run_id, step)
            step += 1

    thread = threading.Thread(target=steps, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def nothing() -> Iterator[None]:
    """For a database without a live run."""
    yield


def add_step(run_id: str, step: int) -> None:
    """Stores one step of the live run."""
    with database.write() as session:
        batch = list(_records(step, 100_000, 1))
        events.apply(session=session, run_id=run_id, attempt=1, events=batch, new_offset=step)


def dataset() -> str:
    """Imports a data set of 2,000 rows. Returns its id."""
    path = Path(get_settings().data_dir) / "rows.jsonl"
    rows = ({"prompt": f"{number} + 1 =", "completion": f" {number + 1}"} for number in range(2000))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return datasets.add_file(path=path, name=path.name).id


def sweep(dataset: str) -> str:
    """Queues a sweep of the starter model on the data set. Returns its id."""
    config = {"model": str(STATIC / "starter"), "data": dataset}
    return lifecycle.start(parse_sweep({"config": config, "space": {"lora_r": [4, 8]}})).id


def _claimed(session: Session, name: str, device: str) -> Run:
    config = RunConfig(model="gpt2", data="alpaca.jsonl", name=name)
    run = runs.create(session=session, config=config, dataset_id=None, name=name)
    claimed = claims.claim(
        session=session, run_id=run.id, owner="node:1:1", devices=[f"{device}/cuda:0"], lease_seconds=1e6
    )
    assert claimed
    return claimed


def _records(step: int, steps: int, ranks: int) -> Iterator[Event]:
    chance, now = random.Random(step), 1.76e9 + step * 0.5
    if step == 1:
        yield PhaseStarted(phase="training", time=now)
        yield Planned(
            total_steps=steps, start_step=0, train_rows=1, eval_rows=1, skipped_rows=0, truncated_rows=0, world_size=ranks,
            engine="LlamaForCausalLM", zero_stage=None, precision="bf16", trainable_parameters=1, total_parameters=2,
            target_modules=["q_proj"], time=now,
        )  # fmt: skip
    loss = 2.5 * math.exp(-3 * step / steps) + chance.gauss(0.3, 0.05)
    yield Metrics(
        step=step, time=now,
        values={
            "loss": loss, "learning_rate": 2e-4 * (1 - step / steps), "grad_norm": chance.random(),
            "tokens_per_second": chance.gauss(5000, 100), "tokens": step * 4096.0, "epoch": step / 1000,
        },
    )  # fmt: skip
    if step % 10 == 0:
        for rank in range(ranks):
            yield Metrics(step=step, rank=rank, time=now, values={"memory_allocated": 1e10, "memory_peak": 1.1e10})
    if step % 1000 == 0:
        yield CheckpointSaved(step=step, path=f"checkpoint-{step}", bytes=10**8, time=now)
