"""Pages that are read: templates filled by the server, which sends their parts again as they change.

A template (app/pages/templates/) extends page.html. Each of its blocks, apart from `main`, is a part: it stands in an element with
the block's name as `data-part`, which static/view.js fills again with what the server sends. What a page shows is in its address:
links like `?sort=name` and forms with `data-live` change the address and the parts, without loading the page again. Buttons call
REST (`action` in app/pages/templates/parts.html), and so do forms with `data-do` ("POST /api/..."): their fields are the values of
the request's body, or with `data-query` of its query (`written` in static/view.js); after a POST such a form is empty again unless
it has `data-stays`, and one with `data-at-once` is sent at each change. A button with `data-open` opens the dialog of
this id, which stands outside of the parts. Of a table whose rows have a `data-key`, only the rows that changed are sent.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html import unescape
from typing import Annotated, Any
from urllib.parse import unquote, urlencode

import jinja2.runtime
from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse, format_sse_event
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.types import Scope

from app.access import callers
from app.access.callers import Caller
from app.format import numbers
from app.format import rows as row_words
from app.format.dataset_text import where
from app.format.rows import CONTINUED, token_signs, visible
from app.pages.common.cache import TimedCache
from app.pages.common.html import ago
from app.texts import _
from app.web import assets
from app.web.addresses import PAGES, is_page
from app.web.caller_turns import turns
from app.web.templating import TEMPLATES
from app.web.theme import chosen, header
from training.units import NONE, byte_size
from worker.store.database import UNREACHABLE
from worker.store.sight import HIDDEN

Context = dict[str, Any]
Parts = dict[str, str]

Now = tuple[Parts | None, float]
"""The HTML of the parts by name, None if they cannot be made; and after how many seconds to look again."""

LIVE = "/api/pages"
"""The changes of a page are at this, followed by the page's address."""
_MAIN = "main"
Block = Callable[[jinja2.runtime.Context], Iterator[str]]
# What stands around the parts, where only they are sent.
_NO_FRAME: Context = {"head": "", "header": "", "colors": "", "name": "", "live": "", "unreachable": False}
# Where rows of tables begin, and the last one ends.
_ROWS, _KEY = re.compile(r"(?=<tr data-key=|</tbody>)"), re.compile(r'<tr data-key="([^"]*)"')
_CELL = re.compile(r"<(tr|td|th)\b[^>]*")
_PING_SECONDS, _RETRY_MS = 15.0, 2000
# Without Gradio no script compiles code, and none is in the page itself.
_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
TEMPLATES.globals |= {
    "ago": ago,
    "bytes": byte_size,
    "duration": numbers.duration,
    "plural": numbers.plural,
    "numbers": numbers,
    "row_words": row_words,
    "NONE": NONE,
    "HIDDEN": HIDDEN,
    "place_of": where,
    "visible": visible,
    "token_signs": token_signs,
    "CONTINUED": CONTINUED,
}


def link(query: QueryParams, **changes: Any) -> str:
    """The address of what the page shows with these values of its query; empty ones are left out."""
    return "?" + urlencode({name: value for name, value in {**query, **changes}.items() if value not in ("", None)})


def labelled(rows: str, heads: Iterable[str | tuple[str, ...]]) -> Markup:
    """The rows of a table, in which each cell has its heading as `data-label`."""
    names: Iterator[str] = iter(())

    def named(tag: re.Match[str]) -> str:
        nonlocal names
        if tag[1] == "tr":
            names = (head if isinstance(head, str) else head[0] for head in heads)
            return tag[0]
        return f'{tag[0]} data-label="{escape(next(names, ""))}"'

    return Markup(_CELL.sub(named, rows))  # noqa: S704 the template has escaped the rows


TEMPLATES.globals["link"] = link
TEMPLATES.globals["is_page"] = is_page
TEMPLATES.filters["labelled"] = labelled


@dataclass(eq=False)  # not frozen: a context manager that it passes sets its traceback
class MissingError(Exception):
    """The page's address names something that does not exist (any more); `link` and `label` lead to what there is."""

    heading: str
    reason: str
    link: str
    label: str


@dataclass(frozen=True)
class View:
    """The page at `path`: `context` returns what its template shows for a query. It is called every `seconds` while a page is open.

    If `context` raises one of UNREACHABLE, the page is the template `without_database` until the database answers.
    If it raises MissingError, the page says that, with status 404. A key `seconds` of the context sets when the next call comes.

    Values of the query that are in `remembered` are taken from the cookie `lathe_NAME`, where the address has none.
    """

    path: str
    template: str
    context: Callable[[QueryParams], Context]
    seconds: float = 5.0
    remembered: tuple[str, ...] = ()
    without_database: str = "page.html"
    _latest: TimedCache[tuple[Caller, str], Now] = field(default_factory=lambda: TimedCache(seconds=1.0))

    def router(self) -> APIRouter:
        """The routes of the page and of its changes."""
        router = APIRouter(include_in_schema=False)
        router.add_api_route(self.path, self.page, methods=["GET", "HEAD"], response_model=None)
        router.add_api_route(f"{LIVE}{self.path}", self.changes, methods=["GET"], response_model=None)
        return router

    def page(self, request: Request) -> Response:
        """The whole page."""
        return self.whole(request, lambda: self.context(self._query(request)))

    def whole(self, request: Request, context: Callable[[], Context]) -> Response:
        """The whole page with this context, as after a form was posted."""
        name = _(next(address.name for address in PAGES if address.path == self.path))
        frame = _frame(request, self.path, name) | {"live": f"{LIVE}{self.path}"}
        try:
            text, _parts = _rendered(self.template, frame | {"query": self._query(request), **context()})
        except UNREACHABLE as error:
            text, _parts = _rendered(self.without_database, frame | {"unreachable": True, "error": error})
        except MissingError as missing:
            return _missing(missing, frame)
        return HTMLResponse(text, headers={"Content-Security-Policy": _POLICY})

    async def changes(
        self, request: Request, shown: str = "", last_event_id: Annotated[str, Header()] = ""
    ) -> Response:
        """What changes in the page, as server-sent events: HTML by part. `shown` is the version that the page has."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return EventSourceResponse(self._stream(self._query(request), last_event_id or shown), headers=headers)

    def _query(self, request: Request) -> QueryParams:
        asked = [(name, value) for name, value in request.query_params.multi_items() if name != "shown"]
        cookies = {name: request.cookies.get(f"lathe_{name}", "") for name in self.remembered}
        kept = [(name, unquote(value)) for name, value in cookies.items() if value and name not in dict(asked)]
        return QueryParams(asked + kept)

    async def _stream(self, query: QueryParams, sent: str) -> AsyncIterator[bytes]:
        yield format_sse_event(retry=_RETRY_MS, comment="follows the page")
        before: Parts = {}
        reachable, silent, fresh = True, 0.0, True
        while True:
            try:
                async with turns.taken():  # hundreds of pages that a user opens at once would keep everybody waiting
                    parts, seconds = await run_in_threadpool(self._now, query, fresh=fresh)
            except MissingError:
                yield _event({"missing": True}, "")
                return
            message: dict[str, Any] | None = None
            if parts is None:
                message = {"unreachable": True} if reachable else None
            elif not reachable or _version(parts) != sent:
                changed = {name: text for name, text in parts.items() if before.get(name) != text}
                message = {"parts": {name: _changed(before.get(name), text) for name, text in changed.items()}}
            if parts is not None:
                before, sent = parts, _version(parts)
            reachable, fresh = parts is not None, False
            if message is not None or silent >= _PING_SECONDS:
                yield _event(message, sent)
                silent = 0.0
            await asyncio.sleep(seconds)
            silent += seconds

    def _now(self, query: QueryParams, *, fresh: bool) -> Now:
        """What the page shows, the same for all pages of a user for a moment; made again if `fresh`, as after an own action."""

        def made() -> Now:
            try:
                context = {"query": query, **self.context(query)}
            except UNREACHABLE:
                return None, self.seconds
            return self.parts(context), float(context.get("seconds", self.seconds))

        key = callers.current(), str(query)
        if fresh:
            self._latest.put(key, made())
        return self._latest.get(key, made)

    def parts(self, context: Context) -> Parts:
        """The HTML of the parts by name."""
        return _rendered(self.template, _NO_FRAME | context)[1]


def why_missing(given: str) -> str:
    """Why an address whose query has this id leads to nothing."""
    return _("“%s” does not exist. It may have been deleted.") % given if given else _("The address has no id.")


def unknown(scope: Scope) -> Response:
    """The page that a browser gets at an address where there is none."""
    missing = MissingError(_("Page not found"), _("Lathe has no page at this address."), "/", _("Show all runs"))
    return _missing(missing, _frame(Request(scope), scope["path"], missing.heading))


def _missing(missing: MissingError, frame: Context) -> Response:
    text, _parts = _rendered("missing.html", frame | {"missing": missing, "live": ""})
    return HTMLResponse(text, 404, headers={"Content-Security-Policy": _POLICY})


def _frame(request: Request, path: str, name: str) -> Context:
    """What stands around the parts of a page."""
    head, colors = assets.view_head(path), chosen(request.cookies)
    return _NO_FRAME | {"head": head, "header": header(path), "colors": colors, "name": name}


def _rendered(name: str, values: Context) -> tuple[str, Parts]:
    """The page of a template, and the HTML of its parts by name."""
    template = TEMPLATES.get_template(name)
    parts: Parts = {}
    context = template.new_context({**values, "version": lambda: _version(parts) if parts else ""})

    def kept(part: str, block: Block) -> Block:
        def render(of: jinja2.runtime.Context) -> Iterator[str]:
            parts[part] = "".join(block(of))
            yield parts[part]

        return render

    for part in template.blocks.keys() - {_MAIN}:
        context.blocks[part][0] = kept(part, context.blocks[part][0])
    return "".join(template.root_render_func(context)), parts


def _changed(before: str | None, now: str) -> str | dict[str, str]:
    """The rows that changed by their `data-key`, if nothing else did; else the whole part, also one that was not sent before."""
    old, new = _ROWS.split(before or ""), _ROWS.split(now)
    if before is None or [_key(piece) for piece in old] != [_key(piece) for piece in new]:
        return now
    changed = {_key(piece): piece for piece, shown in zip(new, old, strict=True) if piece != shown}
    return now if "" in changed else changed


def _key(piece: str) -> str:
    found = _KEY.match(piece)
    return unescape(found[1]) if found else ""


def _event(message: dict[str, Any] | None, version: str) -> bytes:
    if message is None:
        return format_sse_event(comment="ping")
    return format_sse_event(data_str=json.dumps(message, separators=(",", ":"), ensure_ascii=False), id=version)


def _version(parts: Parts) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
