"""The held-out rows of a run that are near duplicates of its training rows, before it starts."""

from dataclasses import dataclass
from typing import Literal

from training.config.run_config import NEAR_DUPLICATES, RunConfig
from training.errors import DataError
from training.tokens.groups import known_near_groups
from training.tokens.run_rows import held_out_leaks, held_out_share, leaked_rows, selected_rows, validation_rows
from training.tokens.store import joined
from worker.datasets import near_rows
from worker.forecasts.row_lengths import count_rows, first_stores
from worker.forecasts.worst_batch import splits_unknown


@dataclass(frozen=True)
class Leaks:
    """The number of held-out rows, and of those that are leaked; while rows are still compared, `done` of `total` are."""

    status: Literal["running", "done"]
    leaked: int = 0
    rows: int = 0
    done: int = 0
    total: int = 0


def of_run(config: RunConfig) -> Leaks | None:
    """The leaked rows of a run; starts to compare them if nobody has. None if its data is not tokenized yet, or it is not known
    before it starts what it holds out."""
    if config.streaming or not config.holds_out:
        return None
    try:
        return _of_validation(config) if config.validation_data else _of_split(config)
    except DataError:  # the checks say so
        return None


def _of_split(config: RunConfig) -> Leaks | None:
    stores = first_stores(config, config.sources)
    if not stores or not held_out_share(config):
        return None
    state = near_rows.measure(stores)
    if state.status == "running":
        return Leaks("running", done=state.done, total=state.total)
    rows = count_rows(config)
    unknown = rows is None or (splits_unknown(config, rows) and config.group_by != NEAR_DUPLICATES)
    if rows is None or unknown:
        return None
    return Leaks("done", held_out_leaks(config, rows), len(selected_rows(config, rows).held_out))


def _of_validation(config: RunConfig) -> Leaks | None:
    train, held_out = first_stores(config, config.sources), first_stores(config, config.validation_sources)
    if not train or not held_out:
        return None
    state = near_rows.measure([*train, *held_out])
    if state.status == "running":
        return Leaks("running", done=state.done, total=state.total)
    rows, near = count_rows(config), known_near_groups(joined([*train, *held_out]))
    if rows is None or rows.validation is None or near is None:
        return None
    numbers = validation_rows(config, rows.validation)
    leaked = leaked_rows(selected_rows(config, rows).train, len(rows.lengths) + numbers, near)
    return Leaks("done", int(leaked.sum()), len(numbers))
