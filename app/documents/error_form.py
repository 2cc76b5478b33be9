"""The form of all errors."""

from typing import Any

from pydantic import ConfigDict, Field

from app.documents import Document

_EXAMPLE: Any = {
    "error": {"field": "lora_r", "value": 0, "message": "is below 1.", "fix": "Use 1 to 1024."},
    "problems": [{"field": "lora_r", "value": 0, "message": "is below 1.", "fix": "Use 1 to 1024."}],
}


class ErrorEntry(Document):
    """What is wrong: `field` and `value` (null if there is none), the message, the fix; `changes` are settings that fix it."""

    field: str
    value: Any
    message: str
    fix: str
    changes: dict[str, Any] = Field({})


class ErrorAnswer(Document):
    """Every error has this form. `problems` lists all of them if there can be several; `error` is the first."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    error: ErrorEntry
    problems: list[ErrorEntry] = Field([])
