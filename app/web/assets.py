"""The style sheets and scripts of the pages: which page loads what, and the address of each file."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from mimetypes import guess_type
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import Response
from markupsafe import Markup

from app import texts
from app.web import compression
from app.web.security import error

STATIC = Path(__file__).resolve().parents[2] / "static"
STATIC_PATH = "/static/lathe"

router = APIRouter()


@dataclass(frozen=True)
class Files:
    """Style sheets and scripts in the order in which they need each other."""

    styles: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()

    def __add__(self, other: "Files") -> "Files":
        return Files(self.styles + other.styles, self.scripts + other.scripts)


def _folder(package: str) -> Path:
    """The folder of an installed package, which is not imported."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"The package {package} is not installed.")
    return Path(found.origin).parent


_COMMON = Files(("lathe.css", "data.css"), ("lathe.js", "connection.js", "share.js", "notify.js"))
# uPlot draws the plots; the package uplot-python includes it.
_PLOTS = Files(
    ("uPlot.min.css", "plots.css"),
    ("uPlot.iife.js", "plot-data.js", "plot-options.js", "plot-menu.js", "plot-panel.js", "plots.js"),
)
_RUN_PLOTS = _PLOTS + Files(("compare.css",), ("compare-relations.js", "compare-plots.js"))
_BY_PAGE = {
    "/": Files(("runs.css",), ("runs.js",)),
    "/new": Files(("new-run.css",), ("new-run.js", "draft.js", "first-form.js")),
    "/run": _PLOTS + Files((), ("log.js", "run.js")),
    "/compare": _RUN_PLOTS + Files((), ("compare.js",)),
    "/sweeps": Files(("sweeps.css",)),
    "/sweep": _RUN_PLOTS + Files(("sweeps.css",)),
    "/new-sweep": Files(("sweeps.css",)),
    "/dataset": Files((), ("histogram.js", "dataset.js")),
    "/diagnose": Files((), ("diagnose.js",)),
    "/playground": Files(("playground.css",), ("playground-answers.js", "playground-sets.js", "playground.js")),
    "/system": Files(("system.css",)),
    "/settings": Files(("settings.css",), ("settings.js",)),
    "/start": Files(("settings.css",)),
}
_IMAGES = ("logo.svg", "favicon.svg")
_VIEW = Files((), ("view.js",))
_REFERENCE = Files(("api.css",))
_ALL = (_COMMON, *_BY_PAGE.values(), _VIEW, _REFERENCE)
_UPLOT = _folder("uplot") / "static"
SERVED = {
    name: (_UPLOT if name.startswith("uPlot") else STATIC) / name
    for name in (*_IMAGES, *(name for files in _ALL for name in (*files.styles, *files.scripts)))
}
"""The files at STATIC_PATH by name."""
_TEXTS = {f"texts-{code}.js": code for code in texts.LANGUAGES if code}


def scripts(path: str, nonce: str) -> Markup:
    """A page's scripts, with the `nonce` that the CSP requires.

    They belong before Gradio's, which call them: deferred scripts run in the order of the document. Before them,
    static/loading.js is in the page itself: it notices missing files.
    """
    files = (*_texts(), *_COMMON.scripts, *_BY_PAGE.get(path, Files()).scripts)
    script = Markup('<script nonce="{}" src="{}" defer></script>')
    own = json.dumps(texts.of_scripts(texts.language(), ("static/loading.js",))) if texts.language() else ""
    loading = Markup('<script nonce="{}"{}>{}</script>').format(
        nonce, Markup(' data-texts="{}"').format(own) if own else "", _loading()
    )
    return loading + Markup("").join(script.format(nonce, static_url(name)) for name in files)


def head(path: str) -> Markup:
    """What else a page's head has: style sheets, which come after Gradio's, and the icon."""
    return _style(_COMMON + _BY_PAGE.get(path, Files()))


def view_head(path: str) -> Markup:
    """The style sheets, scripts and icon of a page without Gradio."""
    files = _COMMON + _BY_PAGE.get(path, Files()) + _VIEW
    deferred = [
        Markup('<script src="{}" defer></script>').format(static_url(name)) for name in (*_texts(), *files.scripts)
    ]
    return _style(files) + Markup("").join(deferred)


def _texts() -> tuple[str, ...]:
    """The script with the texts of the scripts in the language of the request; English needs none."""
    return (f"texts-{texts.language()}.js",) if texts.language() else ()


def _style(files: Files) -> Markup:
    sheets = [Markup('<link rel="stylesheet" href="{}">').format(static_url(name)) for name in files.styles]
    icon = Markup('<link rel="icon" type="image/svg+xml" href="{}">').format(static_url("favicon.svg"))
    return Markup("").join([*sheets, icon, Markup('<meta name="color-scheme" content="light dark">')])


@cache
def _loading() -> Markup:
    return Markup((STATIC / "loading.js").read_text(encoding="utf-8"))  # noqa: S704 our own script


@cache
def static_url(name: str) -> str:
    """The address of one of the files; it changes with the content, so browsers can cache it forever."""
    digest = hashlib.sha256(_content(name)).hexdigest()[:10]
    return f"{STATIC_PATH}/{name}?v={digest}"


@cache
def plotly_url() -> str:
    """The address of the Plotly that Gradio includes."""
    assets = _folder("gradio") / "templates" / "frontend" / "assets"
    return f"/assets/{next(assets.glob('PlotlyPlot-*.js')).name}"


@router.get(STATIC_PATH + "/{name}", response_model=None, include_in_schema=False)
def static(name: str, accept_encoding: Annotated[str, Header()] = "") -> Response:
    """One of our style sheets, scripts or images. Its address changes with its content, so browsers can cache it."""
    if name not in SERVED and name not in _TEXTS:
        return error(404, "path", name, "is not served here.", "")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return compression.response(_packed(name), accept_encoding, guess_type(name)[0] or "", headers)


@cache
def _packed(name: str) -> bytes:
    return compression.packed(_content(name))


def _content(name: str) -> bytes:
    """A file's bytes; those of texts-LANGUAGE.js are made from the catalogue."""
    if name not in _TEXTS:
        return SERVED[name].read_bytes()
    table = json.dumps(texts.of_scripts(_TEXTS[name]), ensure_ascii=False, separators=(",", ":"))
    return f"window.lathe = Object.assign(window.lathe ?? {{}}, {{ texts: {table} }});\n".encode()
