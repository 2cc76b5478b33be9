"""What is typed on the page New sweep as a sweep. No components."""

import re
from typing import Any

from app.access import callers
from training.config.fields import ConfigError
from training.config.yaml_text import YamlTextError
from training.errors import Problem
from worker.store.tables.sweep_values import SweepSpec
from worker.sweeps import sent_yaml
from worker.sweeps.spec import parse_sweep

# Each text is matched in one way only: a long one takes linear time.
_NUMBER = r"[-+]?\d*(?:\.\d*)?(?:[eE][-+]?\d*)?"
_RANGE = re.compile(
    rf"(?P<low>{_NUMBER})\s*(?:to|\.\.)\s*(?P<high>{_NUMBER})(?:[,\s]+(?P<how>log|step\s*(?P<step>{_NUMBER})))?"
)


def values_of(text: str) -> list[str] | dict[str, Any]:
    """The values in a text: "8, 16, 32" (with ";" where values contain commas), "1e-5 to 1e-3 log" or "8 to 64 step 8"."""
    if found := _RANGE.fullmatch(text.strip()):
        more = {"log": True} if found["how"] == "log" else {"step": found["step"]} if found["step"] else {}
        return {"low": found["low"], "high": found["high"], **more}
    parts = text.split(";" if ";" in text else ",")
    return [part.strip() for part in parts if part.strip()]


def sweep_of(configuration: str, method: str, varied: list[tuple[str, str]], given: dict[str, Any]) -> SweepSpec:
    """The sweep that the form describes; `varied` are settings with the text of their values, `given` the other fields.

    Raises:
        ConfigError: a field is wrong.
    """
    space: dict[str, Any] = {}
    for name, text in varied:
        if not name and not text.strip():
            continue
        if not name:
            raise ConfigError([Problem("space", text, "are values of no setting.", "Choose the setting that varies.")])
        if name in space:
            raise ConfigError([Problem(f"space.{name}", None, "is there twice.", "Put all its values in one line.")])
        space[name] = values_of(text)
    used = {name: value for name, value in given.items() if value not in ("", None) and applies(name, method)}
    sent = {"config": _configuration(configuration), "space": space, "method": method, **used}
    callers.check_sent(sent)
    return parse_sweep(sent)


def applies(name: str, method: str) -> bool:
    """True if a field of the form has an effect with this method."""
    if name in ("trials", "seed"):
        return method != "grid"
    return method == "halving" if name in ("reduction_factor", "min_steps") else True


def _configuration(text: str) -> dict[str, Any]:
    try:
        values = sent_yaml.load(text or "")
    except YamlTextError as error:
        fix = "Each line is `setting: value`."
        raise ConfigError([Problem("config", None, f"is not valid YAML: {error}", fix)]) from None
    if not isinstance(values, dict):
        fix = "Give the settings that all runs share, at least model and data; or open this page from New run or a run."
        raise ConfigError([Problem("config", None, "is empty.", fix)])
    return {str(key): value for key, value in values.items()}
