"""The settings of a run as pages show them, in the language of the request: names, values and help."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from app.texts import _, language
from training.config.fields import Setting, settings


def label(name: str) -> str:
    """A setting's name on pages."""
    known = settings().get(name)
    return _(known.label) if known else name.replace("_", " ").capitalize()


def listed(names: Iterable[str]) -> str:
    """Settings inside a sentence: "model, data"; German nouns keep their capitals."""
    words = ", ".join(map(label, names))
    return words if language() else words.lower()


def value_in_words(name: str, value: Any) -> str:
    """A value as pages show it: a choice by its label, a number as typed."""
    setting = settings()[name]
    words = setting.in_words(value)
    return _(words) if str(value) in setting.choices else words


def in_words(name: str, value: Any) -> str:
    """A setting's label and a value: "Strategy: ZeRO stage 2", "LoRA r: 8"."""
    return f"{label(name)}: {value_in_words(name, value)}"


def all_in_words(values: Mapping[str, Any]) -> str:
    """Settings by their labels: "Micro batch size: 2, LoRA r: 8"."""
    return ", ".join(in_words(name, value) for name, value in values.items())


def in_short(setting: Setting) -> str:
    """The first statement of a setting's sentence in English, without the raw names of the choices to which it applies."""
    sentence = re.sub(r"^[a-z0-9][\w, ()]*: ", "", setting.sentence)
    first = re.split(r"[.;](?:\s|$)", sentence, maxsplit=1)[0]
    return f"{first[:1].upper()}{first[1:]}."


def in_full(setting: Setting) -> str:
    """A setting's sentence with its bounds and its name in files, for a tooltip."""
    bounds = f" ({setting.bounded(_)})" if setting.bounds else ""
    sentence, in_files = _(setting.sentence).removesuffix("."), _("In files: {name}.").format(name=setting.name)
    return f"{sentence}{bounds}. {in_files}"
