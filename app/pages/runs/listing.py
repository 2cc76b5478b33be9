"""What the page Runs lists, as the query of its address: filter, order, grouping, columns and page."""

from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from app.pages.common import grouping
from app.pages.runs.columns import DEFAULT, SORTED_UPWARDS, columns
from worker.store.run_list import orders
from worker.store.tables import Status

PAGE = 50
_MOST_COLUMNS = 24


@dataclass(frozen=True)
class Listing:
    """One page of the list. `status` is empty for runs of any status, `group` for no grouping; `page` counts from 1."""

    search: str = ""
    status: str = ""
    order: str = "queued_at"
    descending: bool = True
    group: str = ""
    columns: tuple[str, ...] = DEFAULT
    page: int = 1

    @classmethod
    def of(cls, query: QueryParams) -> "Listing":
        """The list of an address; invalid values get their default."""
        status, order = query.get("status", ""), query.get("order", cls.order)
        return cls(
            search=query.get("search", "").strip()[:500],
            status=status if status in list(Status) else "",
            order=order if order in orders() else cls.order,
            descending=query.get("ascending") != "1",
            group=grouping.known(query.get("group", "")),
            columns=chosen(",".join(query.getlist("columns"))),
            page=_page(query.get("page", "1")),
        )

    @property
    def query(self) -> dict[str, str]:
        """The values of the address that differ from the default."""
        values = asdict(self) | {
            "columns": ",".join(self.columns) if self.columns != DEFAULT else "",
            "ascending": "" if self.descending else "1",
        }
        del values["descending"]
        default = asdict(Listing())
        return {name: str(value) for name, value in values.items() if value not in ("", default.get(name))}

    @property
    def offset(self) -> int:
        """The number of runs before this page."""
        return (self.page - 1) * PAGE

    def link(self, **changes: Any) -> str:
        """The address of the list with these changes, at its first page if they name no other."""
        return f"?{urlencode(replace(self, **{'page': 1} | changes).query)}"

    def ordered_by(self, order: str) -> str:
        """The address of the list sorted by `order`, reversed if it already is."""
        descending = not self.descending if order == self.order else order not in SORTED_UPWARDS
        return self.link(order=order, descending=descending)


def chosen(names: str) -> tuple[str, ...]:
    """The known columns in a text separated by commas; the default columns if there is none."""
    named = dict.fromkeys(name.strip() for name in names.split(","))
    return tuple(name for name in named if name in columns())[:_MOST_COLUMNS] or DEFAULT


def _page(text: str) -> int:
    return min(max(int(text), 1), 1_000_000) if text.isascii() and text.isdecimal() and len(text) < 8 else 1
