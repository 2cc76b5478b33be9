"""Streaming: each row once per epoch, no overlap between ranks, exact resume."""

import json
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tiny import make_model
from trainer_process import Trained, start_recorded

from training.batches.streaming import Reader, Share, Stream, count_rows, shuffled, with_loss
from training.batches.views import WEIGHTS, Tokens
from training.config.run_config import RunConfig
from training.data.rows import DataFile
from training.errors import DataError
from training.run_folder.events import Note
from training.tokens.run_rows import steps_of

ROWS = 53


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "rows.jsonl", ROWS)


def write(path: Path, rows: int) -> Path:
    path.write_text(
        "\n".join(json.dumps({"prompt": f"{row:04}: ", "completion": "ab" * (1 + row % 9)}) for row in range(rows))
    )
    return path


@pytest.fixture
def reader(model: Path, data: Path) -> Reader:
    return open_reader(model, data)


def open_reader(model: Path, data: Path, max_length: int = 64) -> Reader:
    from transformers import AutoTokenizer

    config = RunConfig(model=str(model), data=str(data)).model_copy(update={"max_length": max_length})
    return Reader(DataFile(data, None), AutoTokenizer.from_pretrained(model), config)


def numbers(rows: Iterator[Tokens], count: int) -> list[int]:
    """The numbers of the rows, which their first four characters say."""
    return [int("".join(chr(token + 28) for token in row["input_ids"][:4])) for row in islice(rows, count)]


def test_an_epoch_of_two_ranks_has_every_row_once_and_the_next_has_another_order(reader: Reader) -> None:
    streams = [Stream(reader, 3, ROWS, 1, Share(rank, 2, 1, 1), buffer_rows=10) for rank in range(2)]
    first, second = (numbers(iter(stream), 50) for stream in streams)
    assert sorted(first[:25] + second[:25]) == list(range(3, ROWS))
    assert sorted(first[25:] + second[25:]) == list(range(3, ROWS))
    assert first[:25] != first[25:]


def test_micro_batches_go_to_the_ranks_in_turn(reader: Reader) -> None:
    whole = numbers(iter(Stream(reader, 0, ROWS, 1, Share(0, 1, 4, 1), buffer_rows=10)), 160)
    batches = [whole[start : start + 4] for start in range(0, 160, 4)]
    for rank in range(3):
        mine = numbers(iter(Stream(reader, 0, ROWS, 1, Share(rank, 3, 4, 1), buffer_rows=10)), 48)
        assert mine == [number for batch in batches[rank::3] for number in batch][:48]


@pytest.mark.parametrize("step", [1, 7, 20])
def test_a_stream_resumes_at_its_step(reader: Reader, step: int) -> None:
    begun = numbers(iter(Stream(reader, 0, ROWS, 1, Share(1, 2, 2, 3), buffer_rows=10)), 6 * step + 40)
    resumed = numbers(iter(Stream(reader, 0, ROWS, 1, Share(1, 2, 2, 3, start_step=step), buffer_rows=10)), 40)
    assert resumed == begun[6 * step :]


LONG = {"prompt": "0" * 50, "completion": "x"}


def test_a_row_without_loss_tokens_has_a_place_of_weight_0_and_is_computed_only_where_it_is_alone(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": "0001", "completion": "x"},
        LONG,
        {"prompt": "", "completion": ""},
        {"prompt": "0002", "completion": "y"},
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    stream = Stream(open_reader(model, path, max_length=20), 0, 4, 1, Share(0, 1, 2, 1))
    places = list(islice(iter(stream), 40))
    trained, weightless = with_loss(places), [row for row in places if not row.get(WEIGHTS, np.ones(1)).any()]
    assert sorted(numbers(iter(trained), 40)) == 10 * [1] + 10 * [2]
    assert len(weightless) == stream.without_loss == 20
    assert len(with_loss(weightless)) == 1


def test_a_stream_without_loss_tokens_is_refused(model: Path, data: Path) -> None:
    with pytest.raises(DataError, match="Raise max_length"):
        next(iter(Stream(open_reader(model, data, max_length=5), 0, ROWS, 1, Share(0, 1, 2, 1))))


def test_the_shuffle_buffer_moves_rows_far_and_loses_none() -> None:
    order = list(shuffled(iter(range(1000)), seed=1, epoch=0, size=100))
    assert sorted(order) == list(range(1000))
    assert order == list(shuffled(iter(range(1000)), seed=1, epoch=0, size=100))
    assert max(place - row for place, row in enumerate(order)) > 200


def test_rows_are_counted_without_parsing_and_make_the_steps(tmp_path: Path, data: Path) -> None:
    parquet.write_table(pa.table({"text": ["a"] * 70}), tmp_path / "rows.parquet")
    assert (count_rows(data), count_rows(tmp_path / "rows.parquet")) == (ROWS, 70)
    stream = {"model": "m", "data": "d", "streaming": True, "micro_batch_size": 8, "gradient_accumulation_steps": 1}
    asked = [(53, 1), (53, 2), (56, 1), (3, 0.1)]
    steps = [steps_of(RunConfig.model_validate(stream | {"epochs": epochs}), rows) for rows, epochs in asked]
    assert steps == [7, 14, 7, 1]
    (tmp_path / "rows.json").write_text('[{"text": "a"}]')
    with pytest.raises(DataError, match="streaming reads only JSONL and Parquet"):
        count_rows(tmp_path / "rows.json")


SETTINGS = {
    "streaming": True,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "max_steps": None,
    "epochs": 1.5,
    "eval_split": 5,
    "eval_steps": 0,
    "save_steps": 7,
    "save_total_limit": 10,
}


def train(run_dir: Path, model: Path, data: Path, world: int, **changes: Any) -> Trained:
    strategy = {"num_processes": world, "strategy": "ddp" if world > 1 else "single"}
    trained = start_recorded(run_dir, model, data, **SETTINGS | strategy | changes)
    assert trained.finish() == 0, trained.log()
    return trained


def seen(run_dir: Path, world: int) -> list[list[str]]:
    """What each rank trained on, in order: step, micro step, rows, length and a sum that tells rows apart."""
    return [(run_dir / f"batches-{rank}.txt").read_text().splitlines() for rank in range(world)]


@pytest.mark.train
@pytest.mark.parametrize("world", [1, 2])
def test_a_run_streams_every_row_once_an_epoch_and_resumes_at_the_right_one(
    tmp_path: Path, model: Path, data: Path, world: int
) -> None:
    whole = train(tmp_path / "whole", model, data, world)
    total = -(-int(1.5 * (ROWS - 5)) // (2 * world))
    assert whole.summary["steps"] == total
    assert len(whole.evaluations()) == 1
    assert whole.series("epoch")[total] == pytest.approx(total * 2 * world / (ROWS - 5))
    assert not (whole.run_dir / "tokens").exists()
    ranks = seen(whole.run_dir, world)
    epoch = [line.split()[-1] for lines in ranks for line in lines[: (ROWS - 5) // world]]
    assert len(set(epoch)) == ROWS - 5

    resumed = tmp_path / "resumed"
    shutil.copytree(whole.run_dir / "checkpoints/checkpoint-7", resumed / "checkpoints/checkpoint-7")
    again = train(resumed, model, data, world)
    assert seen(resumed, world) == [[line for line in lines if int(line.split()[0]) > 7] for lines in ranks]
    assert again.losses()[total] == pytest.approx(whole.losses()[total], rel=1e-4)


@pytest.mark.train
def test_ranks_that_stream_rows_without_loss_have_the_losses_and_tokens_of_one_process(
    tmp_path: Path, model: Path
) -> None:
    rows = [LONG if row % 3 else {"prompt": f"{row:04}: ", "completion": "ab" * (1 + row % 5)} for row in range(ROWS)]
    data, held_out = tmp_path / "rows.jsonl", write(tmp_path / "held-out.jsonl", 5)
    data.write_text("\n".join(json.dumps(row) for row in rows))
    settings = {"max_length": 24, "max_steps": 8, "epochs": 1, "optimizer": "sgd", "precision": "fp32"}
    settings |= {"validation_data": str(held_out), "micro_batch_size": 2}
    one, two = (
        train(tmp_path / str(world), model, data, world, **settings, gradient_accumulation_steps=4 // world)
        for world in (1, 2)
    )
    assert two.losses() == pytest.approx(one.losses(), rel=1e-5)
    for name in ("tokens", "epoch", "rows_without_loss"):
        assert two.series(name) == one.series(name)
    assert one.series("rows_without_loss")[8] == pytest.approx(64 * 2 / 3, abs=2)
    assert any("rows_without_loss" in note.message for note in one.of(Note))
