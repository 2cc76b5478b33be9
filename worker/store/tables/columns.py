"""The kinds of columns that several tables have. `added`: the column is newer than its table, so that older rows have its default."""

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Enum, Integer, Text, false
from sqlmodel import Field

ROW_ID = BigInteger().with_variant(Integer(), "sqlite")
"""The type of ids that the database counts up, 64 bits in both; SQLite does so only for a column that is called INTEGER."""


def as_text(kind: type[StrEnum]) -> Enum:
    """An enum stored as text: a new value needs no migration."""
    return Enum(kind, native_enum=False, length=16, values_callable=lambda kind: [one.value for one in kind])


def json_list(description: str = "", *, added: bool = False) -> Any:
    """A list as JSON, empty by default."""
    column = Column(JSON, nullable=False, server_default="[]" if added else None)
    return Field(default_factory=list, sa_column=column, description=description)


def json_object(description: str = "", *, added: bool = False) -> Any:
    """An object as JSON, empty by default."""
    column = Column(JSON, nullable=False, server_default="{}" if added else None)
    return Field(default_factory=dict, sa_column=column, description=description)


def json_value(description: str = "") -> Any:
    """A list or object as JSON, without a default."""
    return Field(sa_column=Column(JSON, nullable=False), description=description)


def json_or_null(description: str = "") -> Any:
    """A list or object as JSON; None is NULL."""
    return Field(default=None, sa_column=Column(JSON(none_as_null=True)), description=description)


def text(description: str = "", *, added: bool = False) -> Any:
    """Text of any length, empty by default."""
    column = Column(Text, nullable=False, server_default="" if added else None)
    return Field(default="", sa_column=column, description=description)


def flag(description: str = "") -> Any:
    """False by default, also in rows that are older than the column."""
    return Field(default=False, sa_column_kwargs={"server_default": false()}, description=description)
