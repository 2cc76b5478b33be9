"""The models that New run offers: the starter, results of runs, names used before, folders and the hub's cache on this machine.

Each has its size, and whether the form's run would fit. And what the hub says of an id. No components.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from markupsafe import Markup

from app.access import callers
from app.pages.common.cache import TimedCache
from app.pages.new_run import memory_panel
from app.texts import _
from app.web.templating import PARTS
from training.model_info.config_json import CONFIG_FILE, ModelError, local_path
from training.run_folder.paths import saved_result
from training.units import byte_size
from worker.allowed_paths import HUB_ID, STARTER, folders_in
from worker.forecasts import shapes
from worker.settings import get_settings, hub_is_offline
from worker.store import database, run_list
from worker.store.database import UNREACHABLE
from worker.store.tables import Run

SUGGESTED = "Qwen/Qwen3-0.6B"
_MOST = 12
"""Models of each kind that are offered."""
_MOST_ENTRIES = 1000
_asked: TimedCache[tuple[str, str | None], str] = TimedCache(seconds=120.0)


def choices(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and value of each model; whether it fits holds for the other `values` of the form."""
    return [(_label(name, model, values), model) for model, name in _offered().items()]


def by_label(label: str, values: Mapping[str, Any]) -> str:
    """The model with this label; any other text as it is."""
    return dict(choices(values)).get(label, label)


def on_hub(name: Any, at: Any) -> Markup | str:
    """What the hub says of a model's id and revision, whose files are not on this machine; nothing for other models."""
    model, revision = str(name or "").strip(), str(at or "").strip()
    if "/" not in model or not HUB_ID.fullmatch(model) or callers.current().allowed.find_model(model):
        return ""
    if shapes.hub_config(model, revision or None):
        return ""
    if hub_is_offline():
        return PARTS.note(
            _("This server works offline (HF_HUB_OFFLINE is set): {model} must be on it already.").format(model=model)
        )
    problem = _asked.get((model, revision or None), lambda: _refusal(model, revision or None))
    if problem:
        return Markup('<p class="note warned">{}</p>').format(problem)
    return PARTS.note(_("{model} is on the hub. It is downloaded when the run starts.").format(model=model))


def _refusal(model: str, revision: str | None) -> str:
    try:
        shapes.check_on_hub(model, revision)
    except ModelError as error:
        return f"{model}: {error.message} {error.fix}"
    return ""


def _offered() -> dict[str, str]:
    """The name of each model by its value, those of a kind beside each other."""
    starter = {str(STARTER): _("Starter model")} if (STARTER / CONFIG_FILE).is_file() else {}
    try:
        with database.read() as session:
            runs = run_list.listing(session=session)
    except UNREACHABLE:  # the form stays usable
        runs = []
    used = dict.fromkeys(str(run.config.get("model") or "") for run in runs)
    allowed = callers.current().allowed
    before = [name for name in used if name and not _is_starter(name) and allowed.model(name) is None]
    named = [*before[:_MOST], *islice(_in_folders(), _MOST), *islice(_in_cache(), _MOST), SUGGESTED]
    others = dict(islice(_results(runs), _MOST)) | {name: name for name in named}
    return starter | {name: text for name, text in others.items() if name not in starter}


def _results(runs: Iterable[Run]) -> Iterator[tuple[str, str]]:
    """The folders of whole models that runs have trained, with their names."""
    for run in runs:
        folder = saved_result(get_settings().runs_dir / run.id) if run.has_result else None
        if folder and (folder / CONFIG_FILE).is_file() and callers.current().allowed.model(str(folder)) is None:
            yield str(folder), _("Result of {run}").format(run=run.name)


def _in_folders() -> Iterator[str]:
    """The models in the folders that the installation names (LATHE_MODEL_FOLDERS)."""
    for folder in folders_in(get_settings().model_folders):
        yield from (str(path) for path in [folder, *_children(folder)] if (path / CONFIG_FILE).is_file())


def _in_cache() -> Iterator[str]:
    """The ids of the hub models whose weights are in the hub's cache of this machine."""
    from huggingface_hub import constants

    for path in _children(Path(constants.HF_HUB_CACHE)):
        kind, _dashes, name = path.name.partition("--")
        if kind == "models" and any(path.glob("snapshots/*/*.safetensors")):
            yield name.replace("--", "/")


def _children(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(islice(folder.iterdir(), _MOST_ENTRIES))
    return []


def _label(name: str, model: str, values: Mapping[str, Any]) -> str:
    folder = local_path(model)
    details = ["static/starter"] if _is_starter(model) else []
    details += [byte_size(size)] if folder and (size := _weights_bytes(folder)) else []
    fits = memory_panel.fits({**values, "model": model})
    details += [] if fits is None else [_("fits") if fits else _("does not fit")]
    return f"{name} ({', '.join(details)})" if details else name


def _weights_bytes(folder: Path) -> int:
    with suppress(OSError):
        return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return 0


def _is_starter(name: str) -> bool:
    path = local_path(name)
    return path is not None and path.absolute() == STARTER
