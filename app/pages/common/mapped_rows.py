"""The first rows of a data set under a mapping of its columns, kept for a while for all viewers."""

from collections.abc import Mapping
from typing import Any

from app.pages.common.cache import TimedCache
from app.pages.common.mapping import missing_roles
from training.data.mapping import write_mapping
from worker.datasets import checking, datasets
from worker.store.tables import Dataset

_ROWS = 3
_previews: TimedCache[tuple[str, str], list[dict[str, Any]]] = TimedCache(seconds=600.0)


def preview(item: Dataset, mapping: Mapping[str, str], kind: str) -> list[dict[str, Any]]:
    """The first rows under a mapping, as `training.data.inspection` prints them; none while the mapping is incomplete."""
    if missing_roles(mapping, kind):
        return []
    line = write_mapping(mapping)
    return _previews.get((item.id, line), lambda: checking.first_rows(datasets.path_of(item), _ROWS, line))
