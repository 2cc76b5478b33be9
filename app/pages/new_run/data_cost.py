"""What a maximum length takes of the chosen data sets, and their equal rows. Tokenizes them in the background."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlencode

from app.format import numbers
from app.pages.common.cache import TimedCache
from app.pages.common.form import local_model
from app.pages.common.mapping import paths
from app.texts import _, ngettext
from training.config.run_config import RunConfig
from training.config.task import Task
from training.data.mapping import parse_mapping
from training.data.row_formats import UNKNOWN
from training.errors import DataError
from training.model_info.config_json import local_folder
from training.model_info.folder import has_tokenizer
from training.rules.conflict import Conflict
from training.tokens.duplicates import count_shared
from training.tokens.lengths import never_trains, trains, truncated
from training.tokens.store import open_store
from worker.datasets import datasets, token_stores
from worker.datasets.token_stores import TokenCount
from worker.forecasts import leaks
from worker.forecasts.leaks import Leaks
from worker.runs.settle import Settled
from worker.store.tables import Dataset

_states: TimedCache[tuple[str, str, str | None], TokenCount] = TimedCache(seconds=1.0)
_leaks: TimedCache[str, Leaks | None] = TimedCache(seconds=1.0)


@dataclass(frozen=True)
class Left:
    """What a maximum length leaves of a data set, as numbers of rows, all of them among `rows`.

    `never` have no tokens with loss at any length; `lost` have them beyond this one, and have some at `enough` tokens.
    `longest` is the longest row, in tokens.
    """

    rows: int
    truncated: int
    never: int
    lost: int
    enough: int
    longest: int


@dataclass(frozen=True)
class Cost:
    """The tokens of a data set for a model, and what the maximum length leaves of it; None while it is not tokenized."""

    item: Dataset
    tokens: TokenCount
    limit: int
    left: Left | None
    task: Task
    address: str


def tokens_of(item: Dataset, model: str, columns: str) -> TokenCount:
    """The tokens of a data set for a model. Starts to make them if the model is in a local folder.

    A mapping that is being typed starts nothing: its columns are not yet those of the data set.
    """
    mapping, local = columns or item.columns_map, local_model(model)
    folder = local_folder(local)

    def look() -> TokenCount:
        found = token_stores.state(item.sha256, local, mapping)
        settled = _is_complete(mapping, item) if mapping else item.row_format != UNKNOWN
        if found.status != "absent" or not settled or folder is None or not has_tokenizer(folder):
            return found
        path = datasets.path_of(item)
        return token_stores.measure(path, item.sha256, local, mapping, rows=item.rows, name=item.name)

    return _states.get((item.sha256, local, mapping), look)


def _is_complete(mapping: str, item: Dataset) -> bool:
    """True if a text is a mapping of columns that the data set has."""
    try:
        named = parse_mapping(mapping).values()
    except DataError:
        return False
    return mapping == item.columns_map or {*named} <= {*item.columns, *paths(item.sample)}


def cost(
    item: Dataset, model: str, max_length: str, columns: str, task: str = Task.SFT, *, prompts: bool = False
) -> Cost | None:
    """What the maximum length takes of a data set; None without a model and a length. `prompts`: their tokens carry loss too."""
    if not model or not max_length.isdecimal():
        return None
    state, limit = tokens_of(item, model, columns), int(max_length)
    query = {"id": item.id, "tab": "lengths", "model": model, "max_length": max_length}
    left = _left(str(state.store), limit, prompts=prompts) if state.store else None
    return Cost(item, state, limit, left, Task(task), f"/dataset?{urlencode(query)}")


@lru_cache(maxsize=256)
def _left(folder: str, limit: int, *, prompts: bool) -> Left:
    store = open_store(Path(folder))
    lengths, first = store.lengths, store.first_trained_with(train_on_prompt=prompts)
    never = never_trains(first, lengths)
    lost = (lengths > 0) & ~trains(first, limit) & ~never
    enough = 2 ** (int(first[lost].max(initial=0)) + 1).bit_length()
    longest = int(lengths.max(initial=0))
    return Left(store.rows, truncated(lengths, limit), int(never.sum()), int(lost.sum()), enough, longest)


def advice(settled: Settled) -> Iterator[Conflict]:
    """The rows of a run's training data that it would skip, data of which it would truncate every row, and held-out rows that are
    training rows, too."""
    config = settled.typed
    if settled.refused or config.task is not Task.SFT:
        return
    for named in settled.data:
        if named.field != "data" or not isinstance(named.data, Dataset):
            continue
        columns = named.source.columns or config.columns or ""
        found = cost(named.data, config.model, str(config.max_length), columns, prompts=config.train_on_prompt)
        if found and found.left:
            yield from _advice(named.data.name, found.limit, found.left)
    yield from _leaked(settled.config)


def _leaked(config: RunConfig) -> Iterator[Conflict]:
    """The held-out rows that are near duplicates of training rows, as far as the data is tokenized."""
    found = _leaks.get(config.model_dump_json(), lambda: leaks.of_run(config))
    field = "validation_data" if config.validation_data else "eval_split"
    if found is None or config.exclude_leaked_rows:
        return
    if found.status == "running":
        reason = _("The held-out rows are being compared with the training rows: {done} of {total} rows.")
        reason = reason.format(done=f"{found.done:,}", total=f"{found.total:,}")
        yield Conflict(
            (field,), reason, _("You can start the run meanwhile: it says the result, too."), {}, blocking=False
        )
    if found.leaked:
        reason = ngettext(
            "{count} of {rows} held-out rows is a near duplicate of a training row: evaluation looks better than it is.",
            "{count} of {rows} held-out rows are near duplicates of training rows: evaluation looks better than it is.",
            found.leaked,
        ).format(count=f"{found.leaked:,}", rows=f"{found.rows:,}")
        yield Conflict(
            (field,), reason, _("Leave these rows out of evaluation."), {"exclude_leaked_rows": True}, blocking=False
        )


def _advice(name: str, limit: int, left: Left) -> Iterator[Conflict]:
    rows, at = numbers.plural(left.rows, "row", "rows"), numbers.count(limit)
    if left.never:
        reason = ngettext(
            "{count} of {rows} of {name} has no tokens with loss at any length.",
            "{count} of {rows} of {name} have no tokens with loss at any length.",
            left.never,
        )
        fix = _("Check its mapping, the roles of its turns and the chat template: the run skips rows without loss.")
        yield Conflict(
            ("columns",), reason.format(count=f"{left.never:,}", rows=rows, name=name), fix, {}, blocking=False
        )
    if left.lost:
        reason = ngettext(
            "{count} of {rows} of {name} has no tokens with loss within {limit} tokens.",
            "{count} of {rows} of {name} have no tokens with loss within {limit} tokens.",
            left.lost,
        ).format(count=f"{left.lost:,}", rows=rows, name=name, limit=at)
        fix = _("Raise the maximum length, or shorten the prompts: the run skips rows without loss.")
        yield Conflict(("max_length",), reason, fix, {"max_length": left.enough}, blocking=False)
    elif left.truncated == left.rows:
        reason = _("Every row of {name} is truncated at {limit} tokens.").format(name=name, limit=at)
        fix = _("Raise the maximum length.")
        yield Conflict(("max_length",), reason, fix, {"max_length": left.longest}, blocking=False)


def repeated(training: Sequence[Dataset], held_out: Sequence[Dataset], model: str, columns: str) -> Iterator[str]:
    """The rows that two training sets share, and those of the evaluation data that training sees; of tokenized sets only."""
    for number, second in enumerate(training):
        for first in training[:number]:
            if count := _shared(first, second, model, columns):
                shared = ngettext(
                    "{count} row of {name} is also in {other}.", "{count} rows of {name} are also in {other}.", count
                )
                yield shared.format(count=f"{count:,}", name=second.name, other=first.name)
    for evaluated in held_out:
        for first in training:
            if count := _shared(first, evaluated, model, columns):
                seen = ngettext(
                    "{count} row of the evaluation data {name} is also in {other}: evaluation looks better than it is.",
                    "{count} rows of the evaluation data {name} are also in {other}: evaluation looks better than it is.",
                    count,
                )
                yield seen.format(count=f"{count:,}", name=evaluated.name, other=first.name)


def _shared(first: Dataset, second: Dataset, model: str, columns: str) -> int:
    if not model:
        return 0
    folders = [tokens_of(item, model, columns).store for item in (first, second)]
    return _count(*map(str, folders)) if all(folders) else 0


@lru_cache(maxsize=256)
def _count(first: str, second: str) -> int:
    return count_shared(open_store(Path(first)).hashes, open_store(Path(second)).hashes)
