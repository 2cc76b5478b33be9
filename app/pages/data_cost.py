"""What a maximum length does to a data set, where its tokens are counted already. Never waits and starts nothing."""

from urllib.parse import urlencode

from markupsafe import Markup

from app import text
from app.cache import TimedCache
from app.pages.dataset_data import local_model
from training.lengths import truncated, untrained
from training.token_store import open_store
from worker import measuring
from worker.measuring import Measurement
from worker.models import Dataset

_states: TimedCache[tuple[str, str, str | None], Measurement] = TimedCache(seconds=5.0)


def cost(item: Dataset, model: str, max_length: str, columns: str) -> Markup:
    """Rows that would be cut off and rows that would teach nothing, in a sentence; where to count them if nobody has."""
    if not model or not max_length.isdecimal():
        return Markup("")
    mapping = columns or item.columns_map
    key = (item.sha256, local_model(model), mapping)
    found = _states.get(key, lambda: measuring.state(*key))
    query = {"id": item.id, "tab": "lengths", "model": model, "max_length": max_length}
    link = Markup('<a href="/dataset?{}">{}</a>').format(
        urlencode(query), "Look at the lengths" if found.store else "Count them"
    )
    if found.store is None:
        standing = "are being counted" if found.status == "running" else "are not counted yet"
        return Markup('<p class="note">Its tokens {} for this model. {}</p>').format(standing, link)
    store, limit = open_store(found.store), int(max_length)
    cut, nothing = truncated(store.lengths, limit), untrained(store.first_trained, store.lengths, limit)
    return Markup('<p class="note">At {} tokens {} cut off, {}. {}</p>').format(
        text.count(limit), _are(cut, store.rows), _teach(nothing), link
    )


def _are(rows: int, total: int) -> str:
    return "no row is" if not rows else f"{rows:,} of {text.plural(total, 'row')} {'is' if rows == 1 else 'are'}"


def _teach(rows: int) -> Markup | str:
    if not rows:
        return "and every row teaches something"
    return Markup('and <b class="bad">{} nothing</b>').format("1 row teaches" if rows == 1 else f"{rows:,} rows teach")
