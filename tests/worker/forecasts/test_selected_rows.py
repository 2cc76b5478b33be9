"""The rows that a run selects are those that are forecast before it: the same number, longest row and steps.

Settings that select rows are drawn at random. A run's own preparation tokenizes and selects; its steps are counted from the batches
that its ranks take.
"""

import json
from dataclasses import replace
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tiny import make_model

from training.batches.layout import dataset
from training.batches.sets import RankBatches
from training.batches.streaming import Stream
from training.chat.tokenizer import load
from training.config.choices import Packing
from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from training.config.task import Task
from training.errors import DataError
from training.reports.report import Report
from training.tokens.order import Shuffled
from training.tokens.run_rows import RowLengths, counted_rows, counted_steps, selected_rows, training_rows
from training.tokens.selection import SetRows
from training.tokens.store import VARIABLE
from training.trainer.prepare import Data, prepare_data
from worker.datasets import datasets
from worker.forecasts.row_lengths import count_rows
from worker.forecasts.speed import steps_of
from worker.forecasts.worst_batch import worst_batches_of
from worker.settings import get_settings
from worker.store import database as db

pytestmark = pytest.mark.slow  # imports torch

DRAWN = 60
SIZES = {"first": 41, "second": 23, "held-out": 17}
Chosen = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def stored(home: Path, tmp_path: Path) -> dict[str, str]:
    """The ids of three data sets, of which some rows carry no loss at short limits."""
    chance, ids = Random(1), {}
    for name, rows in SIZES.items():
        path = tmp_path / f"{name}.jsonl"
        lines = []
        for row in range(rows):
            answer = "a" * chance.choice([3, 9, 30, 80])
            pair = {"prompt": f"{name} {row} " + "p" * chance.choice([1, 5, 40]), "chosen": answer, "rejected": "no"}
            lines.append(json.dumps(pair | {"completion": answer, "topic": chance.choice("aab")}))
        path.write_text("\n".join(lines))
        ids[name] = datasets.add(path=path, name=path.name).dataset.id
    return ids


def drawn(chance: Random, ids: dict[str, str]) -> Chosen:
    """Settings that select rows."""
    several = chance.random() < 0.4
    weights = several and chance.random() < 0.7
    entries = [
        {"path": ids[name]}
        | ({"weight": chance.choice([1, 3, 9])} if weights else {})
        | ({"max_rows": 11} if chance.random() < 0.2 else {})
        for name in ("first", "second")
    ]
    task = chance.choice(["sft", "sft", "pretraining", "seq2seq", "dpo"])
    columns = (
        "prompt=prompt, chosen=chosen, rejected=rejected" if task == "dpo" else "prompt=prompt, completion=completion"
    )
    settings: Chosen = {
        "data": entries if several else ids["first"],
        "columns": columns,
        "task": task,
        "validation_data": ids["held-out"] if chance.random() < 0.3 else None,
        "stratify_by": "topic" if chance.random() < 0.3 else None,
        "group_by": chance.choice([None, None, "near_duplicates"]),
        "eval_split": chance.choice([0, 0.05, 0.3, 3]),
        "data_slice": chance.choice([None, None, "50%", "9"]),
        "max_samples": chance.choice([None, None, 8, 30]),
        "max_length": chance.choice([16, 40, 64, 128]),
        "packing": chance.choice(["none", "packed"]) if task in ("sft", "pretraining") else "none",
        "batch_order": chance.choice(["shuffled", "by_length"]),
        "mix_by": chance.choice(["rows", "tokens"]),
        "mix_until": chance.choice(["first_exhausted", "all_exhausted"]),
        "micro_batch_size": chance.choice([1, 3]),
        "gradient_accumulation_steps": chance.choice([1, 4]),
        "num_processes": chance.choice([1, 2]),
        "epochs": chance.choice([1, 2.5]),
        "seed": chance.randrange(99),
        "train_on_prompt": chance.random() < 0.2 and task == "sft",
    }
    if task == "sft" and not several and chance.random() < 0.2:
        settings |= {"streaming": True, "stratify_by": None, "group_by": None, "max_samples": None, "packing": "none"}
    return settings


def as_run(config: RunConfig, folder: Path, model: Path) -> tuple[Data, int, int]:
    """A run's data, its longest row and its steps, counted from its batches."""
    folder.mkdir()
    with db.read() as session:
        paths = {item.id: str(datasets.path_of(item)) for item in datasets.listing(session=session)}
    own = config.model_dump(mode="json")
    for field in ("data", "validation_data"):
        for name, path in paths.items():
            own[field] = own[field] and own[field].replace(name, path)
    run = RunConfig.model_validate(own)
    data = prepare_data(run, folder, load(str(model)), Report(folder, rank=0))
    if isinstance(data.train, Stream):
        assert data.max_steps
        return data, 0, data.max_steps
    rows = dataset(run, data.train, data.files)
    order = rows.order or Shuffled(len(rows), run.seed)
    batches = RankBatches(order, run.micro_batch_size, world=run.num_processes)
    per_epoch = max(ceil(len(list(batches)) / run.gradient_accumulation_steps), 1)
    steps = ceil(per_epoch * run.epochs)
    trained = [row for epoch in range(ceil(steps / per_epoch)) for row in units(order, epoch, steps, per_epoch, run)]
    sizes = data.train.first.lengths + data.train.second.lengths if run.task is Task.SEQ2SEQ else data.train.lengths  # type: ignore[union-attr]
    return data, int(sizes[trained].max()), steps


def units(order: Any, epoch: int, steps: int, per_epoch: int, run: RunConfig) -> list[int]:
    """The rows that a run takes in an epoch, of which the last may be a part."""
    together = run.micro_batch_size * run.gradient_accumulation_steps * run.num_processes
    taken = list(order.epoch(epoch))[: min(steps - epoch * per_epoch, per_epoch) * together]
    return [int(row) for unit in taken for row in np.atleast_1d(unit)]


def test_a_forecast_is_of_the_rows_that_the_run_takes(
    stored: dict[str, str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(get_settings().tokens_dir))
    chance, compared = Random(7), 0
    for number in range(DRAWN):
        settings = drawn(chance, stored)
        try:
            config = parse({"model": str(model)} | settings)
            data, longest, steps = as_run(config, tmp_path / str(number), model)
        except (ConfigError, DataError):  # the settings leave no row
            continue
        compared += 1
        rows = count_rows(config)
        if rows is None:  # no store for a stream
            assert config.streaming and counted_steps(config, [SetRows(SIZES["first"])]) == steps
            continue
        trained = training_rows(config, rows, selected_rows(config, rows).train)
        # Values of stratify_by are known only to the run: which rows are held out then is not, but how many are.
        either = config.stratify_by and not config.validation_data and config.eval_split
        rows_alike = config.task is not Task.PRETRAINING and config.packing is not Packing.PACKED and not config.mixes
        if rows_alike or not either:
            assert (len(trained.numbers), steps_of(config, rows)) == (data.train.num_rows, steps), settings
        # The largest pair of DPO is not forecast; that of packs need not have the longest row.
        if config.streaming or config.task is Task.DPO or config.packing is Packing.PACKED:
            continue
        worst = worst_batches_of(config, rows, flat=False)
        if either and config.mixes:  # rows of the maximum length are assumed
            assert worst == []
            continue
        largest = max(one.longest for one in worst)
        assert largest >= longest if either else largest == longest, settings
    assert compared > DRAWN // 2


def test_rows_are_counted_before_tokenization_as_the_run_takes_them_if_all_carry_loss(model: Path) -> None:
    chance, compared = Random(8), 0
    ids = {name: name for name in SIZES}
    for _ in range(DRAWN):
        try:
            config = parse({"model": str(model)} | drawn(chance, ids) | {"max_length": 128, "stratify_by": None})
        except ConfigError:
            continue
        sets = tuple(SetRows(SIZES[source.path], source.max_rows) for source in config.sources)
        total = sum(one.rows for one in sets)
        tokens = RowLengths(np.full(total, 20), np.full(total, 10), sets, (np.full(total, 10),) * 2)
        try:
            rows = training_rows(config, tokens, selected_rows(config, tokens).train)
        except DataError:  # a data set has no row left
            continue
        compared += 1
        steps = counted_steps(config, sets)
        assert sum(counted_rows(config, sets)) == len(rows.numbers), config
        assert steps in (None, rows.steps), config
    assert compared > DRAWN // 2


def test_the_validation_data_is_in_the_forecast_of_the_evaluation() -> None:
    asked = {
        "model": "m",
        "data": "d",
        "validation_data": "v",
        "micro_batch_size": 2,
        "max_length": 64,
        "packing": "none",
    }
    config = RunConfig.model_validate(asked)
    short, long = (RowLengths(np.full(6, size), np.full(6, 3)) for size in (10, 48))

    def evaluated(validation: RowLengths | None) -> int:
        (worst, *_) = worst_batches_of(config, replace(short, validation=validation), flat=False)
        return worst.batch.held_out_tokens

    assert (evaluated(short), evaluated(long)) == (2 * 16, 2 * 48)
    assert evaluated(None) == 2 * 64  # not tokenized: of the maximum length
