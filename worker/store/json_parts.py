"""Values within JSON columns, for queries. Where a column holds no JSON, or a value of another type, they are null.

Otherwise one such row would end the query: SQLite refuses to search what is not JSON, PostgreSQL to read text as a number.
"""

from typing import Any

from sqlalchemy import JSON, Boolean, ColumnElement, String, case, type_coerce
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlmodel import col


class _IsJson(FunctionElement[bool]):
    type = Boolean()
    inherit_cache = True


@compiles(_IsJson, "sqlite")
def _sqlite_is_json(element: Any, compiler: Any, **options: Any) -> str:
    return f"json_valid({compiler.process(element.clauses, **options)})"


@compiles(_IsJson, "postgresql")
def _postgresql_is_json(*_: Any, **__: Any) -> str:
    return "true"  # its type JSON refuses anything else


class _TypeOf(FunctionElement[str]):
    type = String()
    inherit_cache = True


@compiles(_TypeOf, "sqlite")
def _sqlite_type(element: Any, compiler: Any, **options: Any) -> str:
    return f"json_type({compiler.process(element.clauses, **options)})"


@compiles(_TypeOf, "postgresql")
def _postgresql_type(element: Any, compiler: Any, **options: Any) -> str:
    return f"json_typeof({compiler.process(element.clauses, **options)})"


class Lowered(FunctionElement[str]):
    """A text in lower case: of all letters, and where a row is damaged, of what can be read of it."""

    type = String()
    inherit_cache = True


@compiles(Lowered, "sqlite")
def _sqlite_lowered(element: Any, compiler: Any, **options: Any) -> str:
    # SQLite's own function knows ASCII only, and Python's driver gives a function no text with a wrong byte.
    return f"lathe_lower(CAST({compiler.process(element.clauses, **options)} AS BLOB))"


@compiles(Lowered, "postgresql")
def _postgresql_lowered(element: Any, compiler: Any, **options: Any) -> str:
    return f"lower({compiler.process(element.clauses, **options)})"


def text(column: Any, name: str) -> ColumnElement[Any]:
    """A value as text."""
    found: ColumnElement[Any] = _part(column, name).as_string()
    return found


def number(column: Any, name: str) -> ColumnElement[Any]:
    """A number."""
    part = _part(column, name)
    return case((_TypeOf(part).in_(("number", "integer", "real")), part.as_float()))


def flag(column: Any, name: str) -> ColumnElement[Any]:
    """True or false."""
    part = _part(column, name)
    return case((_TypeOf(part).in_(("boolean", "integer")), part.as_boolean()))  # SQLite extracts 1 or 0


def _part(column: Any, name: str) -> Any:
    whole: Any = type_coerce(case((_IsJson(col(column)), col(column))), JSON)
    return whole[name]
