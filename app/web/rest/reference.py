"""The page /api/docs, which shows the OpenAPI document. It loads nothing but our own style sheets."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from app.web import assets
from app.web.rest.openapi import DOCUMENT_PATH, TAGS
from app.web.theme import header

PATH = "/api/docs"
_EXAMPLES = {
    "run_id": "RUN",
    "dataset_id": "ID",
    "name": "NAME",
    "channel_id": "CHANNEL",
    "/api/notifications": '{"address": "https://ntfy.sh/my-topic", "events": ["failed"]}',
    "form": "csv",
    "/api/compare": "?runs=RUN,RUN",
    "/api/runs": '{"model": "Qwen/Qwen3-0.6B", "data": "DATA-SET-ID"}',
    "sweep_id": "SWEEP",
    "/api/sweeps": '{"config": {"model": "Qwen/Qwen3-0.6B", "data": "DATA-SET-ID"}, "space": {"lora_r": [8, 16, 32]}}',
    "/api/sweeps/plan": '{"config": {"model": "Qwen/Qwen3-0.6B", "data": "DATA-SET-ID"}, "space": {"lora_r": [8, 16, 32]}}',
    "/api/forecasts": '{"model": "Qwen/Qwen3-0.6B", "micro_batch_size": 8}',
    "/api/renderings": '{"model": "static/starter", "data": "static/starter/train.jsonl"}',
    "application/octet-stream": "--data-binary @FILE",
    "text/plain": "--data-binary @FILE",
}
"""What an example says in place of a parameter, a query or a body."""

router = APIRouter()


@router.get(PATH, include_in_schema=False)
def reference(request: Request) -> HTMLResponse:
    """The reference of the REST API as a page."""
    document = request.app.openapi()
    address = str(request.base_url).rstrip("/")
    return HTMLResponse(page(document, address))


def page(document: dict[str, Any], address: str) -> str:
    """The page for a document; `address` is that of the server, for the examples."""
    sections = {name: _operations(document, name, address) for name in TAGS}
    links = Markup("").join(
        Markup('<a href="#{}">{}</a>').format(_anchor(name), name) for name, found in sections.items() if found
    )
    body = Markup("").join(
        Markup('<section><h2 id="{}">{}</h2>{}</section>').format(_anchor(name), name, Markup("").join(found))
        for name, found in sections.items()
        if found
    )
    values = {"sheets": _sheets(), "header": header(PATH), "links": links, "body": body}
    version = document["info"]["version"]
    return str(_PAGE.format(**values, address=address, schema=DOCUMENT_PATH, errors=_ERROR, version=version))


def _operations(document: dict[str, Any], tag: str, address: str) -> list[Markup]:
    return [
        _operation(document, method.upper(), path, operation, address)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if tag in operation["tags"]
    ]


def _operation(document: dict[str, Any], method: str, path: str, operation: dict[str, Any], address: str) -> Markup:
    return Markup(
        '<details class="operation" id="{id}"><summary><b class="{lower}">{method}</b><code>{path}</code>'
        "<span>{summary}</span></summary><p>{description}</p>{parameters}{body}{answers}<pre>{example}</pre></details>"
    ).format(
        id=operation["operationId"],
        lower=method.lower(),
        method=method,
        path=path,
        summary=operation["summary"],
        description=_words(operation["description"]),
        parameters=_parameters(operation),
        body=_body(document, operation),
        answers=_answers(operation),
        example=example(method, path, operation, address),
    )


def _parameters(operation: dict[str, Any]) -> Markup:
    rows = [
        (one["name"], f"{one['in']}, {_kind(one.get('schema', {}))}", _words(one["description"]))
        for one in operation.get("parameters", ())
    ]
    return _table("Parameters", rows)


def _body(document: dict[str, Any], operation: dict[str, Any]) -> Markup:
    body = operation.get("requestBody")
    if body is None:
        return Markup("")
    media, content = next(iter(body["content"].items()))
    schema = _resolved(document, content["schema"])
    rows = [
        (name, _kind(field), _words(field.get("description", "")))
        for name, field in schema.get("properties", {}).items()
    ]
    words = Markup("<h3>Body</h3><p>{}</p>").format(_words(f"{media}. {body.get('description', '')}"))
    table = _table("", rows)
    folded = Markup("<details><summary>{} fields</summary>{}</details>").format(len(rows), table)
    return words + (folded if len(rows) > 12 else table)


def _answers(operation: dict[str, Any]) -> Markup:
    answers = sorted(operation["responses"].items())
    rows = [(code, ", ".join(answer.get("content", ())), answer["description"]) for code, answer in answers]
    return _table("Answers", rows)


def _table(heading: str, rows: Sequence[tuple[str, str, str]]) -> Markup:
    if not rows:
        return Markup("")
    cells = Markup("").join(
        Markup("<tr><th scope='row'><code>{}</code></th><td>{}</td><td>{}</td></tr>").format(*row) for row in rows
    )
    title = Markup("<h3>{}</h3>").format(heading) if heading else Markup("")
    return title + Markup('<div class="wide"><table>{}</table></div>').format(cells)


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference names."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    found: dict[str, Any] = document["components"]["schemas"][name] if name else schema
    return found


def _kind(schema: dict[str, Any]) -> str:
    """The type of a value in words, with its default."""
    kinds = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    words = " or ".join(_one_kind(one) for one in kinds) or "any"
    default = schema.get("default")
    return words if default in (None, "") else f"{words}, default {json.dumps(default)}"


def _one_kind(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    return str(schema.get("type") or str(schema.get("$ref", "JSON")).rpartition("/")[2])


def example(method: str, path: str, operation: dict[str, Any], address: str) -> str:
    """A curl command for an operation."""
    place = path
    for parameter in operation.get("parameters", ()):
        place = place.replace(f"{{{parameter['name']}}}", _EXAMPLES.get(parameter["name"], "NAME"))
    query = next((value for start, value in _EXAMPLES.items() if value[0] == "?" and path.startswith(start)), "")
    line = f"curl -H \"Authorization: Bearer $LATHE_TOKEN\" '{address}{place}{query}'"
    body = operation.get("requestBody")
    line += "" if method == "GET" or (body and method == "POST") else f" -X {method}"
    if body is None:
        return line
    media = next(iter(body["content"]))
    if media == "application/json":
        return f"{line} --json '{_EXAMPLES.get(path, '{...}')}'"
    return f"{line} {_EXAMPLES.get(media, '-F file=@FILE')}"


def _words(text: str) -> Markup:
    """Text with what stands in backticks as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


@cache
def _sheets() -> Markup:
    link = Markup('<link rel="stylesheet" href="{}">')
    return Markup("").join(link.format(assets.static_url(name)) for name in ("lathe.css", "api.css"))


_ERROR = """\
{
  "error": {"field": "lora_r", "value": 0, "message": "is below 1.", "fix": "Use 1 to 1024."},
  "problems": [...]
}"""
_PAGE = Markup("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>REST API - Lathe</title>{sheets}
</head>
<body class="reference">
{header}
<div class="columns">
<nav aria-label="Subjects">{links}</nav>
<main>
<h1>REST API <small>{version}</small></h1>
<p>Everything that the pages and the command <code>lathe</code> do. As a file for programs: <a href="{schema}">OpenAPI 3.1</a>.</p>
<p>Send your token with each request, <code>Authorization: Bearer TOKEN</code>. The user who runs the server needs none on
the same machine. Every error has one form, with a status of 400 or more:</p>
<pre>{errors}</pre>
<p>Lists take <code>limit</code> and <code>offset</code> and answer <code>total</code>; logs and events take <code>after</code>
and answer <code>next</code>. <code>Idempotency-Key</code> makes it safe to repeat
<code>POST /api/runs</code> and <code>POST /api/sweeps</code>.</p>
{body}
</main>
</div>
</body>
</html>
""")
