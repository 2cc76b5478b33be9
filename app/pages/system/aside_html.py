"""Machines and GPUs that are put aside after failures, as HTML. Pure."""

import json
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app.pages.common.html import ago, each, panel


def aside_html(machines: Sequence[dict[str, Any]], *, admin: bool) -> Markup:
    """A panel with each machine, its latest failure, and for admins a button that takes it back; nothing if there is none."""
    if not machines:
        return Markup("")
    rows = each(
        "<li><b>{}</b><span>put aside {} after {}: {}</span>{}</li>",
        [
            (
                one["host"],
                ago(one["since"]),
                "a failure" if "/" in one["host"] else "two failures",
                one["reason"],
                _button(one["host"]) if admin else "",
            )
            for one in machines
        ],
    )
    body = Markup(
        '<p class="note">Runs on several machines avoid these machines; no run uses these GPUs.</p><ul class="put-aside">{}</ul>'
    ).format(rows)
    return Markup('<div class="machines">{}</div>').format(panel("Put aside", body, classes="whole"))


def _button(host: str) -> Markup:
    template = Markup(
        '<button type="button" class="button small" data-send="{}" aria-label="Use {} again">Use again</button>'
    )
    return template.format(json.dumps({"use": host}), host)
