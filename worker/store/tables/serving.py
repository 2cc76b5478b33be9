"""What the playground keeps: models that are served, and sets of prompts."""

from typing import Annotated, Any

from sqlalchemy import Column, ColumnElement
from sqlmodel import Field, col

from worker.choices import ServedState
from worker.store.tables.columns import as_text, flag, json_list, json_object, text
from worker.store.tables.held import Held
from worker.store.tables.row import Row, Shape
from worker.store.tables.runs import LOCAL
from worker.store.tables.shapes import Prompt, Time


class ServedModel(Held, table=True):
    """A process of a worker's that serves models, from the request for it until its end."""

    __tablename__ = "served_model"

    id: str = Field(primary_key=True, max_length=32)
    owner: str = Field(default=LOCAL, max_length=120, index=True, description="who asked for it")
    models: list[str] = json_list("names in requests: RUN (its result), RUN:base or RUN:checkpoint-N")
    loads: list[str] = json_list("names of models that its process will load beside them", added=True)
    state: ServedState = Field(
        default=ServedState.WAITING, sa_column=Column(as_text(ServedState), nullable=False, index=True)
    )
    reason: str = text("why it waits, why vLLM does not answer, or why it ended; else empty")
    end_request: str = text("why its worker should end it, or empty")
    created_at: Time
    ready_at: Time | None = None
    ended_at: Time | None = None
    pid: int | None = Field(default=None, description="of the serving process")
    device: str | None = Field(default=None, max_length=200, description="the leased device; null on a CPU")
    address: str = Field(default="", max_length=250, description="host:port of the process")
    secret: str = Field(default="", max_length=64, description="the token of its port; never shown")

    @classmethod
    def waits(cls) -> ColumnElement[bool]:
        return col(cls.state) == ServedState.WAITING


class PromptSet(Row, table=True):
    """Prompts that a user keeps, to ask several models the same."""

    __tablename__ = "prompt_set"

    id: str = Field(primary_key=True, max_length=32)
    owner: str = Field(default=LOCAL, max_length=120, index=True, description="who keeps it")
    name: str = Field(max_length=120)
    prompts: Annotated[list[dict[str, Any]], Shape(list[Prompt])] = json_list("each with `system` and `user`")
    answers: dict[str, list[dict[str, Any]]] = json_object(
        "the latest answers of each model, in the order of the prompts"
    )
    every_result: bool = flag("whether every new result is asked")
    created_at: Time = Field(index=True)
