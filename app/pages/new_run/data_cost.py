"""What a maximum length truncates in the chosen data sets, and their equal rows. Tokenizes them in the background."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlencode

from markupsafe import Markup

from app.format import numbers
from app.pages.common.cache import TimedCache
from app.pages.common.form import local_model
from app.pages.common.html import bar, each
from training.data.row_formats import UNKNOWN
from training.model_info.folder import has_tokenizer
from training.tokens.duplicates import count_shared
from training.tokens.lengths import truncated, untrained
from training.tokens.store import open_store
from worker.datasets import datasets, token_stores
from worker.datasets.token_stores import TokenCount
from worker.store.tables import Dataset

_states: TimedCache[tuple[str, str, str | None], TokenCount] = TimedCache(seconds=1.0)


def tokens_of(item: Dataset, model: str, columns: str) -> TokenCount:
    """The tokens of a data set for a model. Starts to make them if the model is in a local folder.

    A mapping that is being typed starts nothing.
    """
    mapping, local = columns or item.columns_map, local_model(model)

    def look() -> TokenCount:
        found = token_stores.state(item.sha256, local, mapping)
        settled = mapping == item.columns_map and (mapping or item.row_format != UNKNOWN)
        if found.status != "absent" or not settled or not has_tokenizer(Path(local)):
            return found
        path = datasets.path_of(item)
        return token_stores.measure(path, item.sha256, local, mapping, rows=item.rows, name=item.name)

    return _states.get((item.sha256, local, mapping), look)


def cost(item: Dataset, model: str, max_length: str, columns: str, *, named: bool = False) -> tuple[Markup, bool]:
    """The truncated rows and the rows with no loss tokens, in a sentence; True while the data set is being tokenized.

    `named`: begin with the data set's name, where there are several.
    """
    if not model or not max_length.isdecimal():
        return Markup(""), False
    state = tokens_of(item, model, columns)
    name = Markup("<b>{}</b> ").format(item.name) if named else Markup("")
    if state.status == "running":
        share = state.done / state.total if state.total else None
        done = f" {state.done:,} of {numbers.plural(state.total, 'row', 'rows')}" if state.total else ""
        progress = Markup('<p class="note">{}Tokenizing for this model.{} {}</p>')
        return progress.format(name, done, bar(share, label="Tokenized")), True
    if state.problem:
        place = f"row {state.problem['line']} " if state.problem.get("line") else ""
        alert = Markup('<p class="alert">{}{}{} <em>{}</em></p>')
        return alert.format(name, place, state.problem["message"], state.problem["fix"]), False
    query = {"id": item.id, "tab": "lengths", "model": model, "max_length": max_length}
    link = Markup('<a href="/dataset?{}">{}</a>').format(
        urlencode(query), "View lengths" if state.store else "Tokenize it"
    )
    if state.store is None:
        return Markup('<p class="note">{}Not tokenized for this model yet. {}</p>').format(name, link), False
    store, limit = open_store(state.store), int(max_length)
    cut, without_loss = truncated(store.lengths, limit), untrained(store.first_trained, store.lengths, limit)
    sentence = Markup('<p class="note">{}At {} tokens, {:,} of {} {} truncated; {}. {}</p>').format(
        name,
        numbers.count(limit),
        cut,
        numbers.plural(store.rows, "row", "rows"),
        _is(cut),
        _without_loss(without_loss),
        link,
    )
    return sentence, False


def repeated(training: Sequence[Dataset], held_out: Sequence[Dataset], model: str, columns: str) -> Markup:
    """The rows that two training sets share, and those of the evaluation data that training sees; of tokenized sets only."""
    lines = []
    for number, second in enumerate(training):
        for first in training[:number]:
            if count := _shared(first, second, model, columns):
                lines.append(
                    f"{numbers.plural(count, 'row', 'rows')} of {second.name} {_is(count)} also in {first.name}."
                )
    for evaluated in held_out:
        for first in training:
            if count := _shared(first, evaluated, model, columns):
                rows = f"{numbers.plural(count, 'row', 'rows')} of the evaluation data {evaluated.name}"
                lines.append(f"{rows} {_is(count)} also in {first.name}: evaluation looks better than it is.")
    items = each('<li class="warning">{}</li>', [(line,) for line in lines])
    return Markup('<ul class="issues">{}</ul>').format(items) if lines else Markup("")


def _shared(first: Dataset, second: Dataset, model: str, columns: str) -> int:
    if not model:
        return 0
    folders = [tokens_of(item, model, columns).store for item in (first, second)]
    return _count(*map(str, folders)) if all(folders) else 0


@lru_cache(maxsize=256)
def _count(first: str, second: str) -> int:
    return count_shared(open_store(Path(first)).hashes, open_store(Path(second)).hashes)


def _is(rows: int) -> str:
    return "is" if rows == 1 else "are"


def _without_loss(rows: int) -> Markup | str:
    if not rows:
        return "every row has tokens with loss"
    return Markup('<b class="bad">{} no tokens with loss</b>').format(
        "1 row has" if rows == 1 else f"{rows:,} rows have"
    )
