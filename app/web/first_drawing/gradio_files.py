"""Gradio's files in the browser: which ones a kind of component needs, and the classes that its style sheets use."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import gradio as gr

ASSETS = Path(gr.__file__).parent / "templates" / "frontend" / "assets"
SHELL = ("core", "blocks", "column")
"""What every page needs beside the kinds of its components."""

_LISTED = re.compile(r"m\.f=\[(.*?)\]")
_KIND = re.compile(
    r"(\w+):\{(?:\w+:\(\)=>\w+\(\(\)=>import\([^)]*\)[^{}]*?,)*component:\(\)=>\w+\(\(\)=>import\(`\./([^`]+)`\)[^{}]*?"
    r"__vite__mapDeps\(\[([\d,]*)\]\)"
)


@cache
def files(kind: str) -> tuple[str, ...]:
    """The names of the modules and style sheets of a kind of component, in the order in which Gradio loads them."""
    return _shell().get(kind) or _kinds().get(kind, ())


def needed(kinds: Iterable[str], suffix: str) -> list[str]:
    """The files with this suffix for a page with these kinds of components."""
    names = dict.fromkeys(name for kind in (*SHELL, *sorted(kinds)) for name in files(kind))
    return [name for name in names if name.endswith(suffix)]


@cache
def scoped(pattern: str, kind: str = "") -> str:
    """The generated class of a component: the group of the first match in its own style sheet, or in all of them.

    Empty if this version of Gradio has no such rule; the first drawing is then less exact.
    """
    own = [name for name in files(kind) if name.endswith(".css")][-1:] if kind else _all_sheets()
    for name in own:
        if found := re.search(pattern, _text(name)):
            return found[1]
    return ""


def _shell() -> dict[str, tuple[str, ...]]:
    """The files of Gradio's own frame, which its first script loads."""
    entry = next(ASSETS.glob("index-*.js"))
    blocks = [path.name for path in sorted(ASSETS.glob("Blocks-*.*"))]
    return {"core": _listed(entry.name), "blocks": tuple(blocks)}


@cache
def _kinds() -> dict[str, tuple[str, ...]]:
    core = next(name for name in _shell()["core"] if name.startswith("core-") and name.endswith(".js"))
    listed, found = _listed(core), {}
    for kind, module, places in _KIND.findall(_text(core)):
        names = [listed[int(place)] for place in places.split(",") if place]
        found[kind] = tuple(dict.fromkeys([module, *(name for name in names if not name.startswith("index-"))]))
    return found


def _listed(script: str) -> tuple[str, ...]:
    """The files that a script of Gradio's loads on demand, in the order of its list."""
    found = _LISTED.search(_text(script))
    return tuple(name.strip('"`').removeprefix("./") for name in found[1].split(",")) if found else ()


@cache
def _all_sheets() -> list[str]:
    return sorted(path.name for path in ASSETS.glob("*.css"))


@cache
def _text(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
