"""The origin of a run, for its model card; and the same run again, from the record in the folder of a result."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sqlmodel import Session, select

from training.config.data_sets import FIELDS, Source, sources, written
from training.config.fields import parse
from training.config.run_config import RunConfig
from training.errors import UserError
from training.run_folder.record import DataSource, Lineage, model_files, teacher_name, versions
from worker.datasets.datasets import ID_LENGTH
from worker.runs.settle import find_model, settle
from worker.store.tables import Dataset, Run

Record = dict[str, Any]
ROLES = {"data": "Training data", "validation_data": "Held-out data"}


def lineage_of(*, session: Session, run: Run) -> Lineage:
    """The run's origin: its parent, its attempts, and its data sets with their names."""
    origins = []
    for field, role in ROLES.items():
        for number, source in enumerate(sources(run.config.get(field)), start=1):
            sha256 = run.fingerprints.get(f"{field} {number}" if number > 1 else field)
            dataset = session.get(Dataset, source.path)
            if sha256:
                origins.append(DataSource(role, dataset.name if dataset else source.name, sha256))
    return Lineage(run.id, run.name, run.parent_id or "", run.attempt, origins, _teacher(session, run))


def _teacher(session: Session, run: Run) -> str:
    """The teacher of a run in words: the name of a model, or the name and id of another run; empty without one."""
    name = str(run.config.get("teacher") or "")
    taught_by = session.get(Run, name) if name else None
    return f"{taught_by.name} (run {name})" if taught_by else teacher_name(name) if name else ""


def settings_of(record: Record, session: Session | None, overrides: dict[str, Any]) -> dict[str, Any]:
    """The settings of the recorded run with the ids of its data sets, and `overrides` over them.

    Data sets are found by content, not by name; without a `session` (a server far away) they are not looked for.

    Raises:
        UserError: the model or a data set is not on this machine and is not overridden.
    """
    values = dict(record["settings"])
    if record["model"]["local"] and "model" not in overrides and find_model(values["model"]) is None:
        fix = "Give the folder of this model on this machine with --model."
        raise UserError("model", values["model"], "was a folder on the machine that trained it.", fix)
    for field, role in ROLES.items():
        recorded = [source for source in record["data"] if source["role"] == role]
        named = sources(values.get(field))
        if field not in overrides and len(recorded) == len(named) > 0:
            found = [_found(session, field, *pair) for pair in zip(named, recorded, strict=True)]
            values[field] = written(found)
    return values | overrides


def _found(session: Session | None, field: str, source: Source, recorded: dict[str, str]) -> Source:
    digest = recorded["sha256"]
    if session is None:
        return replace(source, path=digest[:ID_LENGTH])
    dataset = session.exec(select(Dataset).where(Dataset.sha256 == digest)).first()
    if dataset is None:
        message = f"is not on this machine (SHA-256 {digest})."
        fix = f"Add it with `lathe dataset add FILE`, or give another file with --{field.replace('_', '-')}."
        raise UserError(field, recorded["name"], message, fix)
    return replace(source, path=dataset.id)


def differences(record: Record, config: RunConfig) -> Iterator[str]:
    """Sentences on what differs here from where the recorded run was trained, besides settings that were changed on purpose."""
    yield from _model(record, config)
    yield from _settings(record, config)
    here = dict(versions())
    changed = [
        f"{name} {here.get(name, 'is not installed')} (was {version})"
        for name, version in record["packages"].items()
        if here.get(name) != version
    ]
    if changed:
        yield f"Versions: {', '.join(changed)}."


def _model(record: Record, config: RunConfig) -> Iterator[str]:
    here = model_files(settle(config).config)
    there = record["model"]["files"]
    if not here:
        yield f"Model: {config.model} is not on this machine yet, so its files are not compared."
        return
    changed = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    if changed:
        yield f"Model: {', '.join(changed)} of {config.model} differ from those it was trained with."


def _settings(record: Record, config: RunConfig) -> Iterator[str]:
    there = parse(record["settings"] | {field: getattr(config, field) for field in FIELDS} | {"model": config.model})
    changed = [name for name in RunConfig.model_fields if getattr(there, name) != getattr(config, name)]
    if changed:
        named = (f"{name} {getattr(config, name)} (was {getattr(there, name)})" for name in changed)
        yield f"Settings: {', '.join(named)}."
