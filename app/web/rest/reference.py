"""The page /api/docs, which shows the OpenAPI document. It loads nothing but our own style sheets."""

import json
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from app.web import assets
from app.web.rest.openapi import DOCUMENT_PATH, TAGS
from app.web.templating import TEMPLATES
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
    subjects = {name: _operations(document, name, address) for name in TAGS}
    return TEMPLATES.get_template("reference.html").render(
        sheets=[assets.static_url(name) for name in ("lathe.css", "api.css")],
        header=header(PATH),
        version=document["info"]["version"],
        schema=DOCUMENT_PATH,
        subjects={name: operations for name, operations in subjects.items() if operations},
    )


def _operations(document: dict[str, Any], tag: str, address: str) -> list[dict[str, Any]]:
    return [
        _operation(document, method.upper(), path, operation, address)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if tag in operation["tags"]
    ]


def _operation(
    document: dict[str, Any], method: str, path: str, operation: dict[str, Any], address: str
) -> dict[str, Any]:
    """What the page shows of an operation."""
    parameters = operation.get("parameters", ())
    answers = sorted(operation["responses"].items())
    return {
        "id": operation["operationId"],
        "method": method,
        "path": path,
        "summary": operation["summary"],
        "description": operation["description"],
        "parameters": [
            (one["name"], f"{one['in']}, {_kind(one.get('schema', {}))}", one["description"]) for one in parameters
        ],
        "body": _body(document, operation.get("requestBody")),
        "answers": [(code, ", ".join(answer.get("content", ())), answer["description"]) for code, answer in answers],
        "example": example(method, path, operation, address),
    }


def _body(document: dict[str, Any], body: dict[str, Any] | None) -> dict[str, Any] | None:
    if body is None:
        return None
    media, content = next(iter(body["content"].items()))
    fields = _resolved(document, content["schema"]).get("properties", {})
    return {
        "about": f"{media}. {body.get('description', '')}",
        "fields": [(name, _kind(field), field.get("description", "")) for name, field in fields.items()],
    }


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
