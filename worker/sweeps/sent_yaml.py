"""YAML that somebody sends: a long text is read in a process with limits."""

from typing import Any

from training.config import yaml_text
from training.config.yaml_text import YamlTextError
from worker.machine import programs


def load(text: str) -> Any:
    """As `training.config.yaml_text.load`; in a long text, dates are texts."""
    if not yaml_text.SHORT_TEXT < len(text) <= yaml_text.LONGEST_TEXT:
        return yaml_text.load(text)
    try:
        answer = programs.run_for_json(programs.YAML, [], text=text)
    except programs.ProgramError as error:
        raise YamlTextError(f"it cannot be read: {error}") from None
    if "problem" in answer:
        raise YamlTextError(answer["problem"])
    return answer["value"]
