"""Records survive writing and reading, also with concurrent writers."""

import json
import multiprocessing
from pathlib import Path

from training.run_folder.events import Event, EventWriter, Failed, Metrics, PhaseStarted, decode, encode


def test_a_record_survives_a_round_trip() -> None:
    event = Metrics(step=3, values={"loss": 1.25, "eval_loss": None}, rank=1)
    assert decode(encode(event)) == event


def test_nan_and_infinity_become_null() -> None:
    line = encode(Metrics(step=1, values={"loss": float("nan"), "grad_norm": float("inf"), "learning_rate": 0.1}))
    assert json.loads(line)["values"] == {"loss": None, "grad_norm": None, "learning_rate": 0.1}


def test_truncated_lines_and_records_of_later_versions_are_ignored() -> None:
    assert decode(encode(PhaseStarted(phase="training"))[:-9]) is None
    assert decode(b'{"kind":"unheard of","time":1}') is None
    assert decode(b"[]") is None


def _write_many(path: Path, rank: int) -> None:
    writer = EventWriter(path)
    for step in range(500):
        writer.write(Failed(rank=rank, error="E", message=f"{rank}:{step} " + "x" * 3000))


def test_lines_of_several_writers_are_never_mixed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(path, rank)) for rank in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    events: list[Event | None] = [decode(line) for line in path.read_bytes().splitlines()]
    items = sorted(event.message.split()[0] for event in events if isinstance(event, Failed))
    assert items == sorted(f"{rank}:{step}" for rank in range(3) for step in range(500))
