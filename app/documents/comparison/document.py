"""The comparison of runs: results, settings that differ, and other differences. `compare` reads; the rest is pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field
from sqlmodel import Session

from app.documents import Document
from app.documents.comparison.paired import Against, against_first, held_out, marked
from app.documents.comparison.result_lines import Devices, Line, device_kind, results, texts
from app.documents.results import suites
from app.documents.results.evaluations import of_results
from app.documents.run import RunGroup, grouped
from app.format.dataset_text import data_words, digest_label
from app.format.numbers import count
from app.format.run_text import method
from app.format.setting_text import value_in_words
from training.config.applies import Values, applies
from training.config.data_sets import FIELDS
from training.config.fields import Setting, settings
from training.errors import UserError
from training.units import NONE
from worker.datasets import datasets
from worker.store import runs
from worker.store.run_list import Query
from worker.store.runs import RunNotFound
from worker.store.tables import Run, Status

_IGNORED = ("name",)  # settings without influence on training
_DIGITS = 12  # of a digest
_REPORTED = {
    "world_size": "Processes", "engine": "Engine", "precision": "Precision", "attention": "Attention", "packing": "Packing",
    "train_rows": "Training rows", "eval_rows": "Evaluation rows", "skipped_rows": "Skipped rows",
    "truncated_rows": "Truncated rows",
}  # fmt: skip


def configured(compared: Sequence[Run], names: Mapping[str, str], *, everything: bool) -> list[Line]:
    """The settings that differ between runs in which they have an effect, or with `everything` all that have one.

    A setting that an out-of-memory error has changed counts with its new value. `names` are those of data sets by id.
    """
    configs = [effective(run) for run in compared]
    lines = []
    for name, setting in settings().items():
        used = [config[name] for config in configs if applies(name, config)]
        wanted = bool(used) if everything else any(value != used[0] for value in used)
        if wanted and name not in _IGNORED:
            lines.append(_setting(setting, compared, configs, names))
    return lines


def circumstances(compared: Sequence[Run], devices: Devices) -> list[Line]:
    """What differs outside the settings: data by its SHA-256, device kind, and what the runs reported of their setup."""
    keys = dict.fromkeys(key for run in compared for key in run.fingerprints)
    lines = [_digest(key, compared) for key in keys]
    lines.append(_other("device", "Device", [_kinds(devices[run.id]) for run in compared]))
    lines += [
        _other(f"used_{key}", f"{label}, as used", [(run.plan or {}).get(key) for run in compared])
        for key, label in _REPORTED.items()
    ]
    lines.append(
        _other("used_optimizer", "Optimizer, as used", [(run.summary or {}).get("optimizer") for run in compared])
    )
    return [line for line in lines if line.differs]


def effective(run: Run) -> dict[str, Any]:
    """The settings that the run trained with; a setting newer than the run has its default."""
    return {name: setting.default for name, setting in settings().items()} | run.settings


def _suites(session: Session, compared: Sequence[Run]) -> list[Line]:
    """The newest suite of each run in short; no line if no run has one."""
    newest = suites.newest(session, [run.id for run in compared])
    values = [suites.in_short(newest[run.id]) if run.id in newest else None for run in compared]
    shown = texts(values, str)
    line = Line("suite", "Suite", values, shown, [""] * len(compared), group="Suite", short="Suite")
    return [line] if newest else []


def _setting(setting: Setting, compared: Sequence[Run], configs: Sequence[Values], names: Mapping[str, str]) -> Line:
    values = [config[setting.name] if applies(setting.name, config) else None for config in configs]
    written = [
        _text(setting, value, names) if applies(setting.name, config) else NONE
        for value, config in zip(values, configs, strict=True)
    ]
    return Line(setting.name, setting.label, values, written, [_note(setting, run, names) for run in compared])


def _text(setting: Setting, value: Any, names: Mapping[str, str]) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return data_words(str(value), names) if setting.name in FIELDS else value_in_words(setting.name, value)


def _note(setting: Setting, run: Run, names: Mapping[str, str]) -> str:
    if setting.name not in run.stepped_down:
        return ""
    return f"{_text(setting, run.config.get(setting.name), names)} before running out of memory"


def _digest(key: str, compared: Sequence[Run]) -> Line:
    label = digest_label(key, settings()[key.partition(" ")[0]].label)
    values = [run.fingerprints.get(key) for run in compared]
    shown = texts(values, lambda value: value[:_DIGITS])
    return Line(f"{key}_sha256".replace(" ", "_"), f"{label}, SHA-256", values, shown, [v or "" for v in values])


def _kinds(devices: Sequence[str]) -> str | None:
    return ", ".join(sorted({device_kind(device) for device in devices})) or None


def _other(key: str, label: str, values: list[Any]) -> Line:
    written = texts(values, lambda value: count(value) if isinstance(value, int) else str(value) or "none")
    return Line(key, label, values, written, [""] * len(values))


MOST_RUNS = 50


class TooManyRuns(UserError):  # noqa: N818
    """More runs than one comparison shows."""


@dataclass(frozen=True)
class Comparison:
    """Runs in the order asked for, with a line for each result, setting and other difference; `missing` are ids of no run."""

    runs: list[Run] = field(default_factory=list)
    missing: list[RunNotFound] = field(default_factory=list)
    results: list[Line] = field(default_factory=list)
    settings: list[Line] = field(default_factory=list)
    circumstances: list[Line] = field(default_factory=list)
    against: list[Against] = field(default_factory=list)
    """The runs after the first one, by their answers to the same held-out rows."""
    groups: list[RunGroup] = field(default_factory=list)

    def complete(self) -> "Comparison":
        """The comparison itself. Raises RunNotFound if an id is of no run; has a problem for each."""
        if self.missing:
            first, *others = [error.problem for error in self.missing]
            raise RunNotFound(first.field, first.value, first.message, first.fix, *others)
        return self


def compare(session: Session, ids: Sequence[str], *, all_settings: bool = False, group: str = "") -> Comparison:
    """The comparison of the runs with these ids or unique beginnings of ids, each run once; with `group` also its groups.

    Raises:
        FilterError: runs cannot be grouped so.
        TooManyRuns: there are more than 50 ids.
    """
    check_number(ids)
    found: dict[str, Run] = {}
    missing = []
    for run_id in dict.fromkeys(ids):
        try:
            run = runs.get(session=session, run_id=run_id)
            found.setdefault(run.id, run)
        except RunNotFound as error:
            missing.append(error)
    listed = list(found.values())
    used = runs.devices(session=session, run_ids=list(found))
    names = {item.id: item.name for item in datasets.listing(session=session)}
    differing = configured(listed, names, everything=all_settings)
    others = circumstances(listed, used)
    evaluated = of_results(session, list(found))
    answered = {run.id: [rows for rows in (held_out(run), *evaluated[run.id]) if rows] for run in listed}
    measures = [*marked(results(listed, used), listed, answered), *_suites(session, listed)]
    groups = grouped(session, group, Query(ids=list(found), limit=MOST_RUNS))[1] if group and found else []
    return Comparison(listed, missing, measures, differing, others, against_first(listed, answered), groups)


def check_number(ids: Sequence[str]) -> None:
    """Checks that one comparison can show so many runs. Raises TooManyRuns if there are more than 50."""
    if len(ids) > MOST_RUNS:
        fix = f"Compare at most {MOST_RUNS} runs at once."
        raise TooManyRuns("runs", f"{len(ids)} ids", "are too many for one comparison.", fix)


def split_ids(text: str) -> list[str]:
    """The ids in a text that commas or spaces separate."""
    return text.replace(",", " ").split()


class ComparedRun(Document):
    """A run of a comparison."""

    id: str
    name: str
    status: Status
    method: str


class ComparisonAnswer(Document):
    """Results, settings and other differences of runs. Each list has a value for each run, in their order; null: it has none."""

    runs: list[ComparedRun]
    measures: dict[str, list[Any]] = Field(description="results")
    best: dict[str, list[int]] = Field(description="positions, from 0, of the best value of a result")
    settings: dict[str, list[Any]] = Field(description="settings that differ, or all")
    circumstances: dict[str, list[Any]] = Field(description="what else differs, such as devices and attempts")
    against_first: list[dict[str, Any]] = Field(
        description="what answers to the same held-out rows show against the first run"
    )
    labels: dict[str, str] = Field(description="each key in words")
    groups: list[RunGroup] = Field(description="with `group`, the groups of the runs")


def as_answer(comparison: Comparison) -> ComparisonAnswer:
    """The comparison by key."""
    lines = (*comparison.results, *comparison.settings, *comparison.circumstances)
    return ComparisonAnswer(
        runs=[
            ComparedRun(id=run.id, name=run.name, status=run.status, method=method(run.settings))
            for run in comparison.runs
        ],
        measures={line.key: line.values for line in comparison.results},
        best={line.key: sorted(line.best) for line in comparison.results if line.best},
        settings={line.key: line.values for line in comparison.settings},
        circumstances={line.key: line.values for line in comparison.circumstances},
        against_first=[against.document() for against in comparison.against],
        labels={line.key: line.label for line in lines},
        groups=comparison.groups,
    )
