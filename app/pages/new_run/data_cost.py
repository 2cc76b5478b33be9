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
from app.texts import _, ngettext
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
        words = [_("Tokenizing for this model.")]
        if state.total:
            rows = numbers.plural(state.total, "row", "rows")
            words.append(_("{count} of {total}").format(count=f"{state.done:,}", total=rows))
        progress = Markup('<p class="note">{}{} {}</p>')
        return progress.format(name, " ".join(words), bar(share, label=_("Tokenized"))), True
    if state.problem:
        line = state.problem.get("line")
        place = _("row {number}").format(number=line) + " " if line else ""
        alert = Markup('<p class="alert">{}{}{} <em>{}</em></p>')
        return alert.format(name, place, state.problem["message"], state.problem["fix"]), False
    query = {"id": item.id, "tab": "lengths", "model": model, "max_length": max_length}
    link = Markup('<a href="/dataset?{}">{}</a>').format(
        urlencode(query), _("View lengths") if state.store else _("Tokenize it")
    )
    if state.store is None:
        waiting = _("Not tokenized for this model yet.")
        return Markup('<p class="note">{}{} {}</p>').format(name, waiting, link), False
    store, limit = open_store(state.store), int(max_length)
    cut, without_loss = truncated(store.lengths, limit), untrained(store.first_trained, store.lengths, limit)
    truncation = ngettext(
        "At {limit} tokens, {count} of {rows} is truncated", "At {limit} tokens, {count} of {rows} are truncated", cut
    ).format(limit=numbers.count(limit), count=f"{cut:,}", rows=numbers.plural(store.rows, "row", "rows"))
    sentence = Markup('<p class="note">{}{}; {}. {}</p>').format(name, truncation, _without_loss(without_loss), link)
    return sentence, False


def repeated(training: Sequence[Dataset], held_out: Sequence[Dataset], model: str, columns: str) -> Markup:
    """The rows that two training sets share, and those of the evaluation data that training sees; of tokenized sets only."""
    lines = []
    for number, second in enumerate(training):
        for first in training[:number]:
            if count := _shared(first, second, model, columns):
                shared = ngettext(
                    "{count} row of {name} is also in {other}.", "{count} rows of {name} are also in {other}.", count
                )
                lines.append(shared.format(count=f"{count:,}", name=second.name, other=first.name))
    for evaluated in held_out:
        for first in training:
            if count := _shared(first, evaluated, model, columns):
                seen = ngettext(
                    "{count} row of the evaluation data {name} is also in {other}: evaluation looks better than it is.",
                    "{count} rows of the evaluation data {name} are also in {other}: evaluation looks better than it is.",
                    count,
                )
                lines.append(seen.format(count=f"{count:,}", name=evaluated.name, other=first.name))
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


def _without_loss(rows: int) -> Markup | str:
    if not rows:
        return _("every row has tokens with loss")
    words = ngettext("{count} row has no tokens with loss", "{count} rows have no tokens with loss", rows)
    return Markup('<b class="bad">{}</b>').format(words.format(count=f"{rows:,}"))
