"""The label and the sentence of each choice of a setting, from choices.toml. No torch."""

import tomllib
from enum import StrEnum
from pathlib import Path

_TEXTS: dict[str, dict[str, dict[str, list[str]]]] = tomllib.loads(
    Path(__file__).with_name("choices.toml").read_text(encoding="utf-8")
)
"""By the type of the choices, the setting and the choice: a label, which may be empty, and a sentence."""


def choice_label(choice: StrEnum) -> str:
    """The choice as pages show it; files and flags take its value."""
    by_setting = _TEXTS.get(type(choice).__name__, {})
    label = next((texts[choice.value][0] for texts in by_setting.values()), "")
    return label or choice.value.replace("_", " ").capitalize()


def choice_sentence(setting: str, choice: StrEnum) -> str:
    """The sentence that the form shows below the chosen one; a method of PEFT may have none of its own."""
    _, *sentence = _TEXTS[type(choice).__name__][setting][choice.value]
    return sentence[0] if sentence else f"{choice_label(choice)} of PEFT; its options are listed under Method."
