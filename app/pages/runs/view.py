"""What the page Runs shows: filter, order, grouping, columns and place in the list, as the query of its address."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from urllib.parse import urlencode

from app.pages.runs.columns import DEFAULT, SORTED_UPWARDS, known, sortable
from worker.store.listed.run_list import GROUPS
from worker.store.tables import Status

ANY = "all"
PAGE = 50
_MOST_COLUMNS = 24


@dataclass(frozen=True)
class View:
    """The state of the page. `page` counts from 1."""

    search: str = ""
    status: str = ANY
    order: str = "queued_at"
    descending: bool = True
    group: str = ""
    columns: tuple[str, ...] = DEFAULT
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str], columns: str = "") -> "View":
        """The view in an address; invalid values get their default. `columns` are those that this browser last chose."""
        status, order, group = query.get("status", ANY), query.get("order", cls.order), query.get("group", "")
        return cls(
            search=query.get("search", "")[:500],
            status=status if status in list(Status) else ANY,
            order=order if order in sortable() else cls.order,
            descending=query.get("ascending") != "1",
            group=group if group in GROUPS else "",
            columns=chosen(query.get("columns") or columns),
            page=_page(query.get("page", "1")),
        )

    @property
    def query(self) -> str:
        """The view as the query of an address; empty for the default view."""
        values = asdict(self) | {
            "columns": ",".join(self.columns) if self.columns != DEFAULT else "",
            "ascending": "" if self.descending else "1",
        }
        del values["descending"]
        default = asdict(View())
        return urlencode({name: value for name, value in values.items() if value not in ("", default.get(name))})

    @property
    def chosen_status(self) -> Status | None:
        """The status, None for all."""
        return None if self.status == ANY else Status(self.status)

    @property
    def offset(self) -> int:
        """The number of runs before this page."""
        return (self.page - 1) * PAGE

    def ordered_by(self, order: str) -> "View":
        """The view sorted by `order`, reversed if it already is."""
        if order == self.order:
            return replace(self, descending=not self.descending, page=1)
        return replace(self, order=order, descending=order not in SORTED_UPWARDS, page=1)


def chosen(columns: str) -> tuple[str, ...]:
    """The known columns in a text separated by commas; the default columns if there is none."""
    named = dict.fromkeys(name.strip() for name in columns.split(","))
    return tuple(name for name in named if known(name))[:_MOST_COLUMNS] or DEFAULT


def _page(text: str) -> int:
    return min(max(int(text), 1), 1_000_000) if text.isascii() and text.isdecimal() and len(text) < 8 else 1
