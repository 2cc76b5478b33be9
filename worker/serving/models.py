"""Which models a served process loads: names as requests use them, their files, and whether the device has the memory."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlmodel import Session

from training.config.choices import Quantization, Task
from training.config.name_values import template_arguments
from training.config.run_config import RunConfig
from training.errors import UserError
from training.forecast.gpus import like
from training.model_info.config_json import ModelError
from training.model_info.families import read_shape
from training.model_info.folder import ADAPTER_CONFIG
from training.model_info.shape import ModelShape
from training.run_folder import checkpoints
from training.run_folder.paths import checkpoint_dir, checkpoint_step, saved_result
from training.units import byte_size
from worker.forecasts.shapes import hub_config
from worker.machine.measurement import measured_devices
from worker.runs import fetching
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import Run

BASE, CHECKPOINT = "base", "checkpoint-"
MOST = 5
"""Models of one process, the base included."""

_MODEL_FILE = "config.json"
_UNSERVED = tuple(task for task in Task if not task.generates)
CACHE_TOKENS = 2048
"""The tokens of prompt and answer for which memory must be free."""

_16_BIT = 2
_PACKED = {Quantization.NF4: 0.5625, Quantization.INT8: 1.0}  # bytes of a quantized weight, with a scale per 64


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
    def base(self) -> tuple[str, str, str]:
        """What the base model is: folder or hub id, revision, quantization."""
        quantized = self.config.quantized if self.folder is None or self.adapts else "none"
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


def _plan(sources: list[Source], bases: list[Source]) -> Plan:
    adapters = {one.name: one.folder for one in sources if one.folder and one.adapts}
    models = {one.name: one.folder for one in sources if one.folder and not one.adapts}
    template = {one.name: json.dumps(given) for one in sources if (given := _template(one.config))}
    if not adapters and not bases:
        name, folder = next(iter(models.items()))
        del models[name]
        return Plan(str(folder), name, models=models, template=template)
    based = next(one for one in (*bases, *sources) if one.folder is None or one.adapts)
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
    if not config.task.generates:
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
    if run.config.get("task") in _UNSERVED:
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


def _template(config: RunConfig) -> dict[str, object]:
    return dict(template_arguments(config.chat_template_kwargs))


def check_memory(planned: Plan, device: str | None) -> None:
    """Checks that the models fit in the free memory of a device, or of the host without one.

    Raises:
        NotServed: they do not.
    """
    weights, cache = needed(planned)
    place = next((one for one in measured_devices() if device in (None, one.name)), None)
    card = like(place.label, place.memory_bytes) if device and place else None
    total = weights + cache + (card.context_bytes + card.workspace_bytes if card else 0)
    free = place.memory_bytes - (place.memory_used_bytes or 0) if place else None
    if not weights or free is None or total <= free:
        return
    where = f"on {device}" if device else "in the host's memory"
    message = f"needs {byte_size(total)} ({byte_size(weights)} of weights), and {byte_size(free)} are free {where}."
    fix = "Choose fewer models, or a run with quantization 4bit, or end what else uses this memory."
    raise NotServed("models", ", ".join([planned.name, *planned.adapters, *planned.models]), message, fix)


def needed(planned: Plan) -> tuple[int, int]:
    """The bytes of the weights, and of the key-value cache for `CACHE_TOKENS`; 0 if the model's files are not on this machine."""
    base = _base_folder(planned.model, planned.revision)
    weights = _base_bytes(base, Quantization(planned.quantization)) if base else 0
    if not base or not weights:
        return 0, 0
    folders = [base, *planned.models.values()]
    added = sum(_file_bytes(folder) for folder in (*planned.adapters.values(), *planned.models.values()))
    return weights + added, max(_cache_bytes(_shape(folder)) for folder in folders)


def _base_bytes(folder: Path, quantization: Quantization) -> int:
    """Its files have the precision in which it is loaded; quantization packs the weights of linear modules."""
    shape, stored = _shape(folder), _file_bytes(folder)
    if quantization is Quantization.NONE or shape is None:
        return stored
    packed = min(shape.linear_weights, shape.parameters)
    return int(packed * _PACKED[quantization] + (shape.parameters - packed) * _16_BIT)


def _cache_bytes(shape: ModelShape | None) -> int:
    if shape is None:
        return 0
    return sum(2 * stack.layers * stack.kv_heads * stack.head_dim for stack in shape.stacks) * CACHE_TOKENS * _16_BIT


def _base_folder(model: str, revision: str) -> Path | None:
    """A model's folder: its own, or that in the cache of the hub's client."""
    config = Path(model).expanduser() / "config.json"
    found = config if config.is_file() else hub_config(model, revision)
    return found.parent if found else None


def _shape(folder: Path) -> ModelShape | None:
    try:
        return read_shape(folder / "config.json")
    except (ModelError, OSError, ValueError):
        return None


def _file_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
