"""Plays a run through the worker's functions without training, for tests of pages, commands and REST."""

import json
from pathlib import Path
from typing import Any

from training.config.run_config import RunConfig
from training.run_folder.events import Event
from worker.settings import get_settings
from worker.store import claims, database, history, runs
from worker.store.tables import Run, Status

GIB = 1024**3
SUMMARY: dict[str, Any] = {
    "trainable_parameters": 294_912,
    "total_parameters": 124_737_792,
    "trainable_percent": 0.23642554,
    "adapter_bytes": 1_182_000,
    "memory": {"before_bytes": [GIB, GIB], "after_bytes": [2 * GIB, 2 * GIB], "peak_bytes": [3 * GIB, 7 * GIB // 2]},
    "tokens_per_second": 1234.5,
    "samples_per_second": 12.34,
    "final_loss": 0.12345,
    "eval_loss": 0.23456,
    "steps": 400,
    "strategy": {"engine": "DeepSpeedEngine", "stage": 2, "world_size": 2, "precision": "bf16"},
    "answers": {
        "rows": 50,
        "exact_match_before": 0.04,
        "exact_match_after": 0.96,
        "f1_before": 0.125,
        "f1_after": 0.98,
    },
    "train_seconds": 125.0,
}


class PlayedRun:
    """A queued run, with methods for the actions of its worker and trainer."""

    def __init__(self, name: str = "letters", **settings: Any) -> None:
        config = RunConfig.model_validate({"name": name, "model": "models/tiny", "data": "rows.jsonl"} | settings)
        with database.write() as session:
            self.id = runs.create(session=session, config=config, dataset_id=None).id
        self.attempt = 0
        self._bytes = 0

    @classmethod
    def of(cls, run_id: str) -> "PlayedRun":
        """Returns the existing queued run."""
        run = cls.__new__(cls)
        run.id, run.attempt, run._bytes = run_id, 0, 0
        return run

    def claim(self, *devices: str) -> "PlayedRun":
        with database.write() as session:
            found = claims.claim(
                session=session,
                run_id=self.id,
                owner="host:1:1",
                devices=list(devices or ("host/cpu",)),
                lease_seconds=60,
            )
        assert found is not None
        self.attempt = found.attempt
        return self

    def leave_result(self) -> str:
        """Ends the run. Its folder has its configuration, and an adapter without files. Returns its id."""
        self.end(summary=SUMMARY)
        folder = get_settings().runs_dir / self.id
        (folder / "adapter").mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.row.config))
        return self.id

    def report(self, *events: Event) -> "PlayedRun":
        self._bytes += 100
        where = {"run_id": self.id, "attempt": self.attempt, "new_offset": self._bytes}
        with database.write() as session:
            assert history.apply(session=session, events=list(events), **where)
        return self

    def prints(self, *lines: str) -> "PlayedRun":
        self._bytes += 100
        where = {"run_id": self.id, "attempt": self.attempt, "new_offset": self._bytes}
        with database.write() as session:
            assert history.append_log(session=session, lines=list(lines), **where)
        return self

    def end(self, status: Status = Status.FINISHED, **how: Any) -> "PlayedRun":
        if status is Status.FINISHED:
            how.setdefault("summary", SUMMARY)
        with database.write() as session:
            assert claims.finish(session=session, run_id=self.id, attempt=self.attempt, status=status, **how)
        return self

    def ask_to_stop(self) -> "PlayedRun":
        with database.write() as session:
            runs.request_stop(session=session, run_id=self.id)
        return self

    @property
    def row(self) -> Run:
        with database.read() as session:
            return runs.get(session=session, run_id=self.id)


def model_folder(folder: Path) -> Path:
    """A model folder that a submit accepts: a configuration, and weights of one element."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    (folder / "tokenizer.json").write_text("{}")
    return folder
