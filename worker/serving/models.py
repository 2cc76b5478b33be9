"""Which models a served process loads: names as requests use them, their files, and whether the device has the memory."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlmodel import Session

from training.config.name_values import template_arguments
from training.config.run_config import RunConfig
from training.config.task import traits_of
from training.errors import UserError
from training.model_info.folder import ADAPTER_CONFIG
from training.run_folder import checkpoints
from training.run_folder.paths import checkpoint_dir, checkpoint_step, saved_result
from worker.results import fetching
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import Run, ServedModel

BASE, CHECKPOINT = "base", "checkpoint-"
MOST, MOST_JOINED = 5, 16
"""Models that one request starts, the base included, and those of a process with the adapters that joined it."""

_MODEL_FILE = "config.json"


class NotServed(UserError):  # noqa: N818
    """A model that cannot be served."""


@dataclass(frozen=True)
class Source:
    """A model by its name: the folder of an adapter or a whole model, or None for the base model of the run."""

    name: str
    folder: Path | None
    config: RunConfig

    @property
    def adapts(self) -> bool:
        """True if the folder has an adapter."""
        return self.folder is not None and (self.folder / ADAPTER_CONFIG).is_file()

    @property
    def on_base(self) -> bool:
        """True of the base model and an adapter on it, false of a whole model."""
        return self.folder is None or self.adapts

    @property
    def base(self) -> tuple[str, str, str]:
        """What the base model is: folder or hub id, revision, quantization."""
        quantized = self.config.quantized if self.on_base else "none"
        return self.config.model, self.config.revision or "main", str(quantized)


@dataclass(frozen=True)
class Plan:
    """What one process loads: a base model, adapters on it, and whole models, each by its name."""

    model: str
    name: str
    revision: str = "main"
    quantization: str = "none"
    adapters: dict[str, Path] = field(default_factory=dict)
    models: dict[str, Path] = field(default_factory=dict)
    template: dict[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """As `training.serving` reads them."""
        pairs = [f"--adapter={name}={folder}" for name, folder in self.adapters.items()]
        pairs += [f"--model={name}={folder}" for name, folder in self.models.items()]
        pairs += [f"--template-arguments={name}={text}" for name, text in self.template.items()]
        about = ["--model-name", self.name, "--revision", self.revision, "--quantization", self.quantization]
        return [self.model, *about, *pairs]


def plan(*, session: Session, names: Sequence[str]) -> Plan:
    """What to load for these names.

    Raises:
        NotServed: a model is unknown or not on this machine, or they have different base models.
    """
    if not 1 <= len(names) <= MOST:
        raise NotServed("models", len(names), f"one process serves 1 to {MOST} models.", "Choose fewer.")
    sources = [source(session=session, name=name) for name in dict.fromkeys(names)]
    first = sources[0]
    for other in sources[1:]:
        if other.base[:2] != first.base[:2]:
            message = f"is on another base model than {first.name}: {other.base[0]}, not {first.base[0]}."
            raise NotServed("models", other.name, message, "Choose models on one base model.")
    bases = [one for one in sources if one.folder is None]
    if len(bases) > 1:
        raise NotServed("models", bases[1].name, f"is the same model as {bases[0].name}.", "Choose one of them.")
    return _plan(sources, bases)


def can_join(session: Session, served: ServedModel, name: str) -> bool:
    """True if a process that serves these models could take another: an adapter on its base model, or that model by a name of
    another run.

    Raises:
        NotServed: as `source`.
    """
    added = source(session=session, name=name)
    if len(served.models) + len(served.loads) >= MOST_JOINED or not added.on_base:
        return False
    try:
        sources = [source(session=session, name=known) for known in served.models]
    except NotServed:  # deleted meanwhile
        return False
    based = [one.base for one in sources if one.on_base]
    return added.base in based[:1]


def _plan(sources: list[Source], bases: list[Source]) -> Plan:
    adapters = {one.name: one.folder for one in sources if one.folder and one.adapts}
    models = {one.name: one.folder for one in sources if one.folder and not one.adapts}
    template = {one.name: json.dumps(given) for one in sources if (given := template_of(one.config))}
    if not adapters and not bases:
        name, folder = next(iter(models.items()))
        del models[name]
        return Plan(str(folder), name, models=models, template=template)
    based = next(one for one in (*bases, *sources) if one.on_base)
    name = bases[0].name if bases else f"{based.name.partition(':')[0]}:{BASE}"
    model, revision, quantization = based.base
    return Plan(model, name, revision, quantization, adapters, models, template)


def fetch(names: Sequence[str]) -> None:
    """Downloads the results of these names that are in the object store, which takes minutes: call it outside of a transaction.

    Raises:
        NotServed: a run does not exist, or its result cannot be downloaded.
    """
    for run in _runs_of(names):
        try:
            fetching.fetch(run)
        except fetching.NotFetched as error:
            raise NotServed("model", run.id, error.message, error.fix) from None


def downloading(names: Sequence[str]) -> str:
    """A sentence while results of these names are downloaded from the object store, which this begins; empty if they are here.

    Raises:
        NotServed: as `fetch`.
    """
    for run in _runs_of(names):
        if under_way := fetching.start(run):
            if under_way.problem:
                raise NotServed("model", run.id, under_way.problem, fetching.STORE_FIX)
            return f"The result of run {run.id} is being downloaded from the object store."
    return ""


def _runs_of(names: Sequence[str]) -> list[Run]:
    """The runs whose results the names are."""
    with database.read() as session:
        return [run_of(session=session, name=name) for name in names if ":" not in name]


def source(*, session: Session, name: str) -> Source:
    """The model of a name: RUN (its result), RUN:base, or RUN:checkpoint-N.

    Raises:
        NotServed: there is no such run, or nothing that can be served.
    """
    run, what = run_of(session=session, name=name), name.partition(":")[2]
    config = run.asked
    if not config.task.traits.generates:
        fix = "Choose a run whose model generates text."
        raise NotServed("model", name, f"was trained for {config.task.value}, which answers no prompts.", fix)
    return Source(f"{run.id}:{what}" if what else run.id, None if what == BASE else _folder(run, what), config)


def run_of(*, session: Session, name: str) -> Run:
    """The run of a model's name. Raises NotServed if there is no such run."""
    try:
        return runs.get(session=session, run_id=name.partition(":")[0])
    except runs.RunNotFound:
        fix = "Give the id of a run (its result), or with :base or :checkpoint-N after it; GET /v1/models lists them."
        raise NotServed("model", name, "is not a model of any run.", fix) from None


def offered(run: Run) -> list[str]:
    """The names that `source` finds for a run on this machine: result, checkpoints (newest first), base."""
    if not traits_of(run.config).generates:
        return []
    run_dir = get_settings().runs_dir / run.id
    result = [run.id] if run.has_result and saved_result(run_dir) else []
    saved = [path for path in checkpoints.sealed(run_dir) if _loadable(path)]
    return [*result, *(f"{run.id}:{path.name}" for path in saved), f"{run.id}:{BASE}"]


def _folder(run: Run, what: str) -> Path:
    name, run_dir = f"{run.id}:{what}" if what else run.id, get_settings().runs_dir / run.id
    if not what:
        folder = saved_result(run_dir) if run.has_result else None
        if folder is None:
            fix = f"Choose a checkpoint ({run.id}:{CHECKPOINT}N) or its base ({run.id}:{BASE})."
            raise NotServed("model", name, f"has no result on this machine: the run is {run.status.value}.", fix)
        return folder
    step = checkpoint_step(Path(what))
    folder = checkpoint_dir(run_dir, step) if step is not None else None
    if folder is None or not _loadable(folder) or folder not in checkpoints.sealed(run_dir):
        fix = f"Choose one of {', '.join(offered(run))}."
        raise NotServed("model", name, "is not a checkpoint whose weights are in one piece on this machine.", fix)
    return folder


def _loadable(folder: Path) -> bool:
    """True if transformers or PEFT can load it: ZeRO-3 and FSDP save the weights in shards of their own."""
    described = (folder / ADAPTER_CONFIG).is_file() or (folder / _MODEL_FILE).is_file()
    return described and any(folder.glob("*.safetensors"))


def template_of(config: RunConfig) -> dict[str, object]:
    """The arguments of a run's chat template."""
    return dict(template_arguments(config.chat_template_kwargs))
