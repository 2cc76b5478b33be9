"""Whether served models fit in the free memory of a device."""

from pathlib import Path

from training.config.choices import Quantization
from training.forecast.gpus import like
from training.model_info.config_json import ModelError, local_folder
from training.model_info.families import read_shape
from training.model_info.shape import ModelShape
from training.units import byte_size
from worker.forecasts.shapes import hub_config
from worker.machine.measurement import measured_devices
from worker.serving.models import NotServed, Plan, Source

CACHE_TOKENS = 2048
"""The tokens of prompt and answer for which memory must be free."""

_16_BIT = 2


def check_memory(planned: Plan, device: str | None) -> None:
    """Checks that the models fit in the free memory of a device, or of the host without one.

    Raises:
        NotServed: they do not.
    """
    _check_free(needed(planned), device, ", ".join([planned.name, *planned.adapters, *planned.models]), is_new=True)


def check_added(added: Source, device: str | None) -> None:
    """Checks that a model that joins others fits in the free memory. Raises NotServed if it does not."""
    _check_free((_file_bytes(added.folder) if added.folder else 0, 0), device, added.name, is_new=False)


def _check_free(parts: tuple[int, int], device: str | None, names: str, *, is_new: bool) -> None:
    """`is_new`: if a process starts for them, which needs memory of its own."""
    weights, cache = parts
    place = next((one for one in measured_devices() if device in (None, one.name)), None)
    card = like(place.label, place.memory_bytes) if is_new and device and place else None
    total = weights + cache + (card.context_bytes + card.workspace_bytes if card else 0)
    free = place.memory_bytes - (place.memory_used_bytes or 0) if place else None
    if not weights or free is None or total <= free:
        return
    where = f"on {device}" if device else "in the host's memory"
    message = f"needs {byte_size(total)} ({byte_size(weights)} of weights), and {byte_size(free)} are free {where}."
    fix = "Choose fewer models, or a run with quantization 4bit, or end what else uses this memory."
    raise NotServed("models", names, message, fix)


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
    return int(packed * quantization.packed_bytes() + (shape.parameters - packed) * _16_BIT)


def _cache_bytes(shape: ModelShape | None) -> int:
    if shape is None:
        return 0
    return sum(2 * stack.layers * stack.kv_heads * stack.head_dim for stack in shape.stacks) * CACHE_TOKENS * _16_BIT


def _base_folder(model: str, revision: str) -> Path | None:
    """A model's folder: its own, or that in the cache of the hub's client."""
    folder = local_folder(model)
    if folder and (folder / "config.json").is_file():
        return folder
    found = hub_config(model, revision)
    return found.parent if found else None


def _shape(folder: Path) -> ModelShape | None:
    try:
        return read_shape(folder / "config.json")
    except (ModelError, OSError, ValueError):
        return None


def _file_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
