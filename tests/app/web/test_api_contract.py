"""The API only gains: what clients may rely on, each parameter and each field of a body or an answer, stays.

api.txt.gz holds them, a line each: "GET /api/runs 200 runs[].id: string". `python tests/app/web/test_api_contract.py` adds new
ones, as with a release.
"""

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

KEPT = Path(__file__).with_name("api.txt.gz")


def facts(document: Schema) -> set[str]:
    """The lines of an OpenAPI document: "GET /api/runs 200 runs[].id: string"."""
    schemas = document["components"]["schemas"]
    lines = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            route = f"{method.upper()} {path}"
            lines.add(route)
            for parameter in operation.get("parameters", ()):
                lines |= {
                    f"{route} {parameter['in']}{line}"
                    for line in _fields(f" {parameter['name']}", parameter["schema"], schemas)
                }
            contents = {"body": operation.get("requestBody", {})} | operation["responses"]
            for name, content in contents.items():
                for media, described in content.get("content", {}).items():
                    kind = "" if media == "application/json" else f" {media}"
                    lines |= {
                        f"{route} {name}{kind}{line}" for line in _fields("", described.get("schema", {}), schemas)
                    }
    return lines


def _fields(name: str, schema: Schema, schemas: Schema, depth: int = 0) -> Iterator[str]:
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if depth > 8:  # a form that contains itself
        return
    for variant in (*schema.get("anyOf", ()), *schema.get("allOf", ()), *schema.get("oneOf", ())):
        yield from _fields(name, variant, schemas, depth)
    if kind := schema.get("type"):
        yield f"{name}: {kind}"
    for key, inner in schema.get("properties", {}).items():
        yield from _fields(f"{name}.{key}" if name.strip() else f" {key}", inner, schemas, depth + 1)
    if "items" in schema:
        yield from _fields(f"{name}[]" if name.strip() else " []", schema["items"], schemas, depth + 1)


def _kept() -> set[str]:
    return set(gzip.decompress(KEPT.read_bytes()).decode().splitlines())


def test_nothing_that_clients_rely_on_is_gone(home):
    from web import client

    now = facts(client().get("/api/openapi.json").json())
    assert len(now) > 6000
    assert sorted(_kept() - now) == []


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from web import client

    lines = sorted(_kept() | facts(client().get("/api/openapi.json").json()))
    KEPT.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
