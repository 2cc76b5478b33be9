"""The description of the REST API as an OpenAPI document, made from the routes and their docstrings; the form of all errors."""

import re
import threading
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.documents import ErrorAnswer
from training.config.fields import settings
from training.config.run_config import RunConfig

DOCUMENT_PATH = "/api/openapi.json"
SETTINGS = "#/components/schemas/RunConfig"
_MODELS = "#/components/schemas/{model}"

_TEXTS = tomllib.loads(Path(__file__).with_name("openapi.toml").read_text(encoding="utf-8"))
TAGS: dict[str, list[str]] = _TEXTS["tags"]
"""The subjects in their order, and the paths of each."""

RUN_BODY = {
    "requestBody": {
        "required": True,
        "description": "Settings of a run; `model` and `data` are required (docs/configuration.md).",
        "content": {"application/json": {"schema": {"$ref": SETTINGS}}},
    }
}


SWEEP_BODY = {
    "requestBody": {
        "required": True,
        "description": "A sweep: `config` and `space` are required (docs/sweeps.md).",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/SweepSpec"}}},
    }
}


def raw_body(media: str, description: str) -> dict[str, Any]:
    """The declaration of a route that reads its body itself."""
    content = {media: {"schema": {"type": "string", "format": "binary"}}}
    return {"requestBody": {"required": True, "description": description, "content": content}}


def install(app: FastAPI) -> None:
    """Makes `app.openapi()` return our document, created once, also if many threads ask for it first."""
    lock = threading.Lock()

    def document() -> dict[str, Any]:
        with lock:
            if app.openapi_schema is None:
                app.openapi_schema = described(app)
            return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def described(app: FastAPI) -> dict[str, Any]:
    """The document of an application."""
    from worker.store.tables.sweep_values import SweepSpec

    document = get_openapi(
        title="Lathe",
        version=version("lathe-workbench"),
        routes=app.routes,
        description="Runs, the queue, data sets, forecasts, diagnoses, the system and accounts as JSON (docs/api.md).",
        tags=[{"name": name} for name in TAGS],
    )
    run = RunConfig.model_json_schema(ref_template=_MODELS)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= run.pop("$defs", {}) | {"RunConfig": run}
    sweep = SweepSpec.model_json_schema(ref_template=_MODELS)
    schemas |= sweep.pop("$defs", {}) | {"SweepSpec": sweep}
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    for path, operation in operations(document):
        _describe(path, operation)
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each operation with its path."""
    for path, item in document["paths"].items():
        for operation in item.values():
            yield path, operation


def methods_of(document: dict[str, Any], place: str) -> list[str]:
    """The methods of a path such as /api/runs/0123; none if it is not in the document."""
    found = set()
    for path, item in document["paths"].items():
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)), place):
            found |= {method.upper() for method in item}
    return sorted(found)


def _describe(path: str, operation: dict[str, Any]) -> None:
    """Sets tag and summary, and describes the parameters that the route does not describe itself."""
    text = operation.get("description", "").strip()
    summary = re.split(r"(?<=[.:;])\s", text, maxsplit=1)[0]
    operation["summary"], operation["description"] = summary.rstrip(".:;"), text
    operation["tags"] = [name for name, places in TAGS.items() if path.startswith(tuple(places))]
    for parameter in operation.get("parameters", ()):
        if not parameter.get("description"):
            parameter["description"] = _TEXTS["parameters"].get(parameter["name"]) or _of_setting(parameter["name"])


def _of_setting(name: str) -> str:
    """The help of the setting of this name."""
    known = settings().get(name)
    return known.sentence if known else ""


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "The request is refused: what is wrong, and the fix."},
    "503": {"model": ErrorAnswer, "description": "The database is unreachable; try again."},
}
"""The answers of every route besides its own."""
