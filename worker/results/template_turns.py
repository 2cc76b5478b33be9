"""The parts of the chat template of a result, for programs with template languages of their own."""

import json
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from training.chat.template import LARGEST_BYTES
from training.model_info.chat_template import ChatTemplate, Turns
from worker.machine import programs
from worker.machine.programs import ProgramError, ProgramKilled

_TURNS: TypeAdapter[Turns | None] = TypeAdapter(Turns | None)


def turns_of(template: ChatTemplate, options: dict[str, Any]) -> Turns | None:
    """The parts of the template with its own options; None if it does more than join texts, or takes too much time or memory."""
    if len(template.text) > LARGEST_BYTES:
        return None
    try:
        return _computed(json.dumps([template.text, template.begin, template.end, options], sort_keys=True))
    except ProgramKilled:  # perhaps for the memory that others take: not remembered
        return None


@lru_cache(maxsize=64)
def _computed(asked: str) -> Turns | None:
    try:
        found = programs.run_for_json(programs.TEMPLATE_TURNS, [], text=asked)["turns"]
    except ProgramKilled:
        raise
    except ProgramError:
        return None
    return _TURNS.validate_python(found)
