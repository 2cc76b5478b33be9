"""The settings of runs as they trained, and what else can differ between them: data, devices, processes, engine. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.documents.comparison.line import Line, texts
from app.documents.comparison.results import Devices, device_kind
from app.words.datasets import data_words, digest_label
from app.words.numbers import count
from training.config.applies import Values, applies
from training.config.data_sets import FIELDS
from training.config.fields import Setting, settings
from training.units import NONE
from worker.store.tables import Run

_IGNORED = ("name",)  # settings without influence on training
_DIGITS = 12  # of a digest
_REPORTED = {
    "world_size": "Processes", "engine": "Engine", "precision": "Precision", "attention": "Attention", "packing": "Packing",
    "train_rows": "Training rows", "eval_rows": "Evaluation rows", "skipped_rows": "Skipped rows",
    "truncated_rows": "Truncated rows",
}  # fmt: skip


def configured(runs: Sequence[Run], names: Mapping[str, str], *, everything: bool) -> list[Line]:
    """The settings that differ between runs in which they have an effect, or with `everything` all that have one.

    A setting that an out-of-memory error has changed counts with its new value. `names` are those of data sets by id.
    """
    configs = [effective(run) for run in runs]
    lines = []
    for name, setting in settings().items():
        used = [config[name] for config in configs if applies(name, config)]
        wanted = bool(used) if everything else any(value != used[0] for value in used)
        if wanted and name not in _IGNORED:
            lines.append(_setting(setting, runs, configs, names))
    return lines


def circumstances(runs: Sequence[Run], devices: Devices) -> list[Line]:
    """What differs outside the settings: data by its SHA-256, device kind, and what the runs reported of their setup."""
    keys = dict.fromkeys(key for run in runs for key in run.fingerprints)
    lines = [_digest(key, runs) for key in keys]
    lines.append(_line("device", "Device", [_kinds(devices[run.id]) for run in runs]))
    lines += [
        _line(f"used_{key}", f"{label}, as used", [(run.plan or {}).get(key) for run in runs])
        for key, label in _REPORTED.items()
    ]
    lines.append(_line("used_optimizer", "Optimizer, as used", [(run.summary or {}).get("optimizer") for run in runs]))
    return [line for line in lines if line.differs]


def effective(run: Run) -> dict[str, Any]:
    """The settings that the run trained with; a setting newer than the run has its default."""
    return {name: setting.default for name, setting in settings().items()} | run.config | run.stepped_down


def _setting(setting: Setting, runs: Sequence[Run], configs: Sequence[Values], names: Mapping[str, str]) -> Line:
    values = [config[setting.name] if applies(setting.name, config) else None for config in configs]
    written = [
        _text(setting, value, names) if applies(setting.name, config) else NONE
        for value, config in zip(values, configs, strict=True)
    ]
    return Line(setting.name, setting.label, values, written, [_note(setting, run, names) for run in runs])


def _text(setting: Setting, value: Any, names: Mapping[str, str]) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return data_words(str(value), names) if setting.name in FIELDS else setting.in_words(value)


def _note(setting: Setting, run: Run, names: Mapping[str, str]) -> str:
    if setting.name not in run.stepped_down:
        return ""
    return f"{_text(setting, run.config.get(setting.name), names)} before running out of memory"


def _digest(key: str, runs: Sequence[Run]) -> Line:
    label = digest_label(key, settings()[key.partition(" ")[0]].label)
    values = [run.fingerprints.get(key) for run in runs]
    shown = texts(values, lambda value: value[:_DIGITS])
    return Line(f"{key}_sha256".replace(" ", "_"), f"{label}, SHA-256", values, shown, [v or "" for v in values])


def _kinds(devices: Sequence[str]) -> str | None:
    return ", ".join(sorted({device_kind(device) for device in devices})) or None


def _line(key: str, label: str, values: list[Any]) -> Line:
    written = texts(values, lambda value: count(value) if isinstance(value, int) else str(value) or "none")
    return Line(key, label, values, written, [""] * len(values))
