"""Describes out-of-memory errors of a rank, without using more of that memory."""

import gc
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from traceback import extract_tb
from typing import Any

import torch

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.errors import causes, is_out_of_memory
from training.reports.live_memory import Groups, counter, largest_groups
from training.reports.report import Report
from training.run_folder.events import GENERATION, OutOfMemory

_LARGEST = 12  # groups of tensors in a report
_REQUESTED = re.compile(r"Tried to allocate ([\d.]+) (GiB|MiB|KiB|bytes)")
_ALLOCATED = re.compile(r"([\d.]+) (GiB|MiB|KiB|bytes) is allocated by PyTorch")
_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "bytes": 1}
_GENERATION = "training/trainer/generation.py"
_OPTIMIZERS = re.compile(r"torch/optim/|bitsandbytes/optim|torchao/|deepspeed/|accelerate/optimizer")


@contextmanager
def reporting_out_of_memory(report: Report, config: RunConfig, machine: Machine) -> Iterator[None]:
    """Writes an `OutOfMemory` record if an out-of-memory error is raised within the context."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            report.for_rank(describe(error, report, config, machine))
        raise


def describe(error: BaseException, report: Report, config: RunConfig, machine: Machine) -> OutOfMemory:
    """Makes the record of an out-of-memory error; `report` has the rank's position in the step."""
    part = part_of_step(error)
    in_step = part and (part != GENERATION or report.phase == "training")
    moment = report.tracker.now if report.tracker and in_step else None
    return OutOfMemory(
        rank=report.rank,
        device=machine.kind,
        phase=report.phase,
        policy=config.on_out_of_memory.value,
        part=part,
        step=moment.step if moment else None,
        micro_step=moment.micro_step if moment else None,
        requested_bytes=requested(error),
        tensors=moment.tensors if moment else [],
        batches=moment.batches() if moment else [],
        **_contents(_size_in(error, _ALLOCATED)),
    )


def part_of_step(error: BaseException) -> str:
    """Returns the part of a step from an error's traceback: generation, forward, backward, optimizer, evaluation, or an empty text.

    A recomputed layer belongs to the backward pass. DeepSpeed takes its step where accelerate calls backward.
    """
    frames = [frame for cause in causes(error) for frame in extract_tb(cause.__traceback__)]
    names = {frame.name for frame in frames}
    if "evaluation_loop" in names:
        return "evaluation"
    if any(frame.filename.endswith(_GENERATION) for frame in frames):
        return GENERATION
    if any(name.startswith("clip_grad_norm") for name in names) or any(
        frame.name == "step" and _OPTIMIZERS.search(frame.filename) for frame in frames
    ):
        return "optimizer"
    if "training_step" not in names:
        return ""
    return "backward" if "backward" in names else "forward"


def requested(error: BaseException) -> int | None:
    """Returns the requested bytes, if the error's text contains them."""
    return _size_in(error, _REQUESTED)


def _size_in(error: BaseException, pattern: re.Pattern[str]) -> int | None:
    for cause in causes(error):
        if match := pattern.search(str(cause)):
            return int(float(match[1]) * _UNITS[match[2]])
    return None


def _contents(allocated: int | None) -> dict[str, Any]:
    """Returns the contents of the memory: `memory`, `kinds` and `largest` of the record.

    `allocated` comes from the error's text, since some memory has been freed after the error.
    """
    contents = _contents_of_cuda() if torch.cuda.is_available() else _contents_of_cpu()
    if allocated is not None and contents:
        contents["memory"]["allocated"] = allocated
    return contents


def _contents_of_cpu() -> dict[str, Any]:
    """Reads the counter of live storages, if there is one."""
    counting = counter()
    if counting is None:
        return {}
    for kind, tensor in _tensors():
        if kind != "other":
            counting.set_kind(tensor, kind)
    memory = {"allocated": counting.current, "peak": counting.peak}
    if counting.budget is not None:
        memory["limit"] = counting.budget
    kinds = {kind: size for kind, size in counting.by_kind.most_common() if size > 0}
    return {"memory": memory, "kinds": kinds, "largest": counting.largest(_LARGEST)}


def _contents_of_cuda() -> dict[str, Any]:
    """Reads the allocator's statistics and the tensors known to Python; the rest is saved by autograd."""
    stats, (free, total) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
    memory = {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "peak": torch.cuda.max_memory_allocated(),
        "fragmented": stats.get("inactive_split_bytes.all.current", 0),
        "free": free,
        "limit": total,
    }
    groups: Groups = defaultdict(list)
    for kind, tensor in _on_cuda(_tensors()):
        size = tensor.untyped_storage().nbytes()
        groups[kind, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")].append(size)
    kinds: Counter[str] = Counter()
    for (kind, _, _), sizes in groups.items():
        kinds[kind] += sum(sizes)
    kinds["kept for the backward pass"] = max(0, memory["allocated"] - kinds.total())
    return {"memory": memory, "kinds": dict(kinds), "largest": largest_groups(groups, _LARGEST)}


def _on_cuda(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors on the GPU, each storage once, with its first kind."""
    addresses: set[int] = set()
    for kind, tensor in tensors:
        if tensor.is_cuda and (address := tensor.untyped_storage().data_ptr()) and address not in addresses:
            addresses.add(address)
            yield kind, tensor


def _tensors() -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors known to Python; weights, gradients and optimizer state first, so that views get the right kind."""
    objects = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor | torch.optim.Optimizer)]
    tensors = [item for item in objects if isinstance(item, torch.Tensor)]
    parameters = [tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter)]
    states = [state for item in objects if isinstance(item, torch.optim.Optimizer) for state in item.state.values()]
    yield from (("weights", weight) for weight in parameters)
    yield from (("gradients", weight.grad) for weight in parameters if weight.grad is not None)
    yield from (("optimizer", value) for state in states for value in state.values() if isinstance(value, torch.Tensor))
    yield from (("other", tensor) for tensor in tensors)
