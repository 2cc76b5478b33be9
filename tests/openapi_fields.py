"""The fields of requests in the OpenAPI document: their places, and bodies that are valid but for one of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]
Place = tuple[str, ...]

EACH, ANY = "[]", "{}"
"""Parts of a place: an item of a list, and a value of an object whose keys a caller chooses."""


@dataclass(frozen=True)
class Field:
    """A field of a request with a text, a number or any JSON value: where it is sent (`where`: path, query, header, json or body),
    its place, and its schema."""

    method: str
    path: str
    where: str
    place: Place
    schema: Schema

    @property
    def name(self) -> str:
        return f"{self.method} {self.path} {self.where}:{'.'.join(self.place)}"

    @property
    def is_text(self) -> bool:
        """True if it takes a text that its caller makes up."""
        return self.schema.get("type", "string") == "string" and not {"enum", "const"} & self.schema.keys()


class Document:
    """An OpenAPI document."""

    def __init__(self, document: Schema) -> None:
        self.document = document

    def operations(self) -> Iterator[tuple[str, str, Schema]]:
        for path, item in self.document["paths"].items():
            for method, operation in item.items():
                yield method, path, operation

    def fields(self) -> Iterator[Field]:
        """Every field of every request."""
        for method, path, operation in self.operations():
            for one in operation.get("parameters", ()):
                for place, schema in self._leaves(one["schema"], (one["name"],)):
                    yield Field(method, path, one["in"], place, schema)
            for media, content in operation.get("requestBody", {}).get("content", {}).items():
                where = "json" if media == "application/json" else "body"
                for place, schema in self._leaves(content["schema"], ()):
                    yield Field(method, path, where, place, schema)

    def body_schema(self, method: str, path: str) -> Schema | None:
        content = self.document["paths"][path][method].get("requestBody", {}).get("content", {})
        return content["application/json"]["schema"] if "application/json" in content else None

    def resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema

    def _leaves(self, schema: Schema, place: Place) -> Iterator[tuple[Place, Schema]]:
        schema = self.resolved(schema)
        for form in ("anyOf", "oneOf", "allOf"):
            if form in schema:
                rest = {key: value for key, value in schema.items() if key != form}
                for one in schema[form]:
                    yield from self._leaves(rest | self.resolved(one), place)
                return
        match schema.get("type"):
            case "object" if "properties" in schema:
                for name, part in schema["properties"].items():
                    yield from self._leaves(part, (*place, name))
            case "object":
                inner = schema.get("additionalProperties")
                yield from self._leaves(inner if isinstance(inner, dict) else {}, (*place, ANY))
            case "array":
                yield from self._leaves(schema.get("items", {}), (*place, EACH))
            case "null":
                return
            case _:
                yield place, schema

    def example(self, schema: Schema) -> Any:
        """A value of a schema, with its required fields alone."""
        schema = self.resolved(schema)
        for form in ("anyOf", "oneOf", "allOf"):
            if form in schema:
                return self.example(schema[form][0])
        match schema.get("type"):
            case "object":
                return {name: self.example(schema["properties"][name]) for name in schema.get("required", ())}
            case "array":
                return [self.example(schema["items"])] * schema.get("minItems", 0)
            case kind:
                usual = {"integer": schema.get("minimum", 1), "number": schema.get("minimum", 1), "boolean": False}
                return schema["enum"][0] if "enum" in schema else usual.get(str(kind), "x")


def placed(body: Any, place: Place, value: Any) -> Any:
    """A body with a value at a place."""
    if not place:
        return value
    first, *rest = place
    if first == EACH:
        return [placed(None, tuple(rest), value)]
    within = dict(body) if isinstance(body, dict) else {}
    key = "1" if first == ANY else first
    return within | {key: placed(within.get(key), tuple(rest), value)}
