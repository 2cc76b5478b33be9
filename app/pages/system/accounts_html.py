"""What accounts use and may use at once as HTML, from the document of the installation. Pure."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app.pages.common.html import bar, each, panel, table
from app.pages.system.machines_html import level
from app.words.system import account_cells

_HEADS = ("Account", "Devices", "Waiting runs", "Disk")
_USES = (("devices", "max_devices"), ("waiting", "max_waiting"), ("disk_bytes", "max_disk_bytes"))


def accounts_html(accounts: Sequence[dict[str, Any]]) -> Markup:
    """A panel with a row for each account; nothing if there is none."""
    if not accounts:
        return Markup("")
    heads = each('<th scope="col">{}</th>', [(head,) for head in _HEADS])
    body = table("figures accounts", heads, Markup("").join(map(_row, accounts)))
    return Markup('<div class="machines">{}</div>').format(panel("Accounts", body, classes="whole"))


def _row(account: dict[str, Any]) -> Markup:
    shares = [_share(account[use], account[limit]) for use, limit in _USES]
    cells = zip(_HEADS[1:], shares, account_cells(account), strict=True)
    drawn = each("<td>{} {}</td>", [(_bar(share, f"{account['name']}: {head}"), text) for head, share, text in cells])
    return Markup("<tr><td>{}</td>{}</tr>").format(account["name"], drawn)


def _share(use: int | None, limit: int | None) -> float | None:
    """The share in use; None without a limit, or before the use is measured."""
    return None if use is None or limit is None else min(use / limit, 1.0)


def _bar(share: float | None, label: str) -> Markup:
    return Markup("") if share is None else bar(share, label=label, classes=level(share))
