"""The view of a comparison, which the page's address holds, so that a refresh and a shared link show the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from app.documents.comparison.document import MOST_RUNS, split_ids

_LONGEST_ID = 40
_LONGEST_KEY = 60


@dataclass(frozen=True)
class View:
    """Runs by id (or as typed, where there is no such run), the column that sorts the table, and which settings are shown.

    `dropped` counts runs beyond the most that one page shows.
    """

    runs: tuple[str, ...] = ()
    order: str = ""
    descending: bool = False
    all_settings: bool = False
    dropped: int = 0

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "View":
        """The view in an address."""
        return cls(
            order=query.get("order", "")[:_LONGEST_KEY],
            descending=query.get("descending") == "1",
            all_settings=query.get("all") == "1",
        ).showing(split_ids(query.get("runs", "")))

    def showing(self, ids: Sequence[str]) -> "View":
        """The view of other runs, each once."""
        unique = list(dict.fromkeys(run_id[:_LONGEST_ID] for run_id in ids))
        return replace(self, runs=tuple(unique[:MOST_RUNS]), dropped=max(len(unique) - MOST_RUNS, 0))

    def changed(self, action: Mapping[str, Any]) -> "View":
        """The view after an action of the user: add, remove, order, all."""
        added, removed, order = (action.get(name) for name in ("add", "remove", "order"))
        if isinstance(added, str):
            return self.showing([*self.runs, *split_ids(added)])
        if isinstance(removed, str):
            return self.showing([run_id for run_id in self.runs if run_id != removed])
        if isinstance(order, str):
            return self._ordered_by(order[:_LONGEST_KEY])
        return replace(self, all_settings=bool(action["all"])) if "all" in action else self

    @property
    def query(self) -> str:
        """The view as the query of an address, without default values."""
        values = {
            "runs": ",".join(self.runs),
            "order": self.order,
            "descending": "1" if self.descending else "",
            "all": "1" if self.all_settings else "",
        }
        return urlencode({name: value for name, value in values.items() if value}, safe=",")

    def _ordered_by(self, order: str) -> "View":
        """Sorted by `order`: ascending, then descending, then again in the order of the address."""
        if order != self.order:
            return replace(self, order=order, descending=False)
        return replace(self, order="" if self.descending else order, descending=not self.descending)
