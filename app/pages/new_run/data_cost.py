"""How many rows of a tokenized data set a maximum length truncates. Never waits and starts nothing."""

from urllib.parse import urlencode

from markupsafe import Markup

from app.pages.common.cache import TimedCache
from app.pages.common.models import local_model
from app.words import numbers
from training.tokens.lengths import truncated, untrained
from training.tokens.store import open_store
from worker.datasets import token_counts
from worker.datasets.token_counts import TokenCount
from worker.store.tables import Dataset

_states: TimedCache[tuple[str, str, str | None], TokenCount] = TimedCache(seconds=5.0)


def cost(item: Dataset, model: str, max_length: str, columns: str) -> Markup:
    """The truncated rows and the rows with no loss tokens, in a sentence; a link to tokenize the data set if it is not."""
    if not model or not max_length.isdecimal():
        return Markup("")
    mapping = columns or item.columns_map
    key = (item.sha256, local_model(model), mapping)
    state = _states.get(key, lambda: token_counts.state(*key))
    query = {"id": item.id, "tab": "lengths", "model": model, "max_length": max_length}
    link = Markup('<a href="/dataset?{}">{}</a>').format(
        urlencode(query), "View lengths" if state.store else "Tokenize it"
    )
    if state.store is None:
        progress = "Tokenizing for this model." if state.status == "running" else "Not tokenized for this model yet."
        return Markup('<p class="note">{} {}</p>').format(progress, link)
    store, limit = open_store(state.store), int(max_length)
    cut, without_loss = truncated(store.lengths, limit), untrained(store.first_trained, store.lengths, limit)
    return Markup('<p class="note">At {} tokens, {:,} of {} {} truncated; {}. {}</p>').format(
        numbers.count(limit), cut, numbers.plural(store.rows, "row"), _is(cut), _without_loss(without_loss), link
    )


def _is(rows: int) -> str:
    return "is" if rows == 1 else "are"


def _without_loss(rows: int) -> Markup | str:
    if not rows:
        return "every row has tokens with loss"
    return Markup('<b class="bad">{} no tokens with loss</b>').format(
        "1 row has" if rows == 1 else f"{rows:,} rows have"
    )
