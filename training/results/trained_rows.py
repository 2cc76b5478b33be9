"""Rows that a run trained on, as an evaluation answers them: what held-out rows are compared with."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from training.config.data_sets import written
from training.config.run_config import RunConfig
from training.data.rows import DataFile, data_files
from training.errors import DataError, UserError
from training.reports.report import Report
from training.scoring.request import EvaluationRequest
from training.trainer.prepare import training_rows


@dataclass(frozen=True)
class TrainedRows:
    """Some of the `total` rows that a run trained on, by their `numbers` over all of its files."""

    files: tuple[DataFile, ...]
    numbers: frozenset[int]
    total: int


def trained_rows(
    config: RunConfig, request: EvaluationRequest, run_dir: Path, folder: Path, tokenizer: PreTrainedTokenizerBase
) -> TrainedRows:
    """Draws `request.rows` of the rows, the same for each model, from the data where it is now. Raises UserError if they cannot be
    selected as the run has done."""
    moved = zip(config.sources, request.training, strict=True)
    here = [replace(source, path=path, columns=columns, name=name) for source, (path, columns, name) in moved]
    config = config.model_copy(update={"data": written(here)})
    # Only rank 0 writes notes about the rows; the run wrote them when it began.
    report = Report(folder, rank=1)
    try:
        found = training_rows(config, run_dir, tokenizer, report)
    except DataError as error:
        raise UserError("data", request.name, error.message, error.fix) from error
    random = np.random.default_rng(config.seed)
    drawn = random.choice(found, min(request.rows or len(found), len(found)), replace=False)
    return TrainedRows(data_files(here, config.columns), frozenset(drawn.tolist()), len(found))
