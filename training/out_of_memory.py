"""What is told of a rank whose device memory ran out, made of what is known without any more of that memory."""

import gc
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import StackSummary, extract_tb
from typing import Any

import torch

from training import manifest, step_down
from training.config import RunConfig
from training.events import OutOfMemory
from training.failure import is_out_of_memory
from training.memory_limit import counter
from training.moments import Moment
from training.report import Report
from training.rules import Machine

_LARGEST = 12  # groups of allocations that are told
_ASKED = re.compile(r"Tried to allocate ([\d.]+) (GiB|MiB|KiB|bytes)")
_HELD = re.compile(r"([\d.]+) (GiB|MiB|KiB|bytes) is allocated by PyTorch")
_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "bytes": 1}
_OPTIMIZERS = re.compile(r"torch/optim/|bitsandbytes/optim|torchao/|deepspeed/|accelerate/optimizer")


@contextmanager
def told(report: Report, config: RunConfig, run_dir: Path, machine: Machine) -> Iterator[None]:
    """Where memory runs out within, the report says of it what is known, and which settings would take less."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            report.each(describe(error, report, config, run_dir, machine))
        raise


def describe(error: BaseException, report: Report, config: RunConfig, run_dir: Path, machine: Machine) -> OutOfMemory:
    """The report on an error of memory; `report` says where the rank stood."""
    part = part_of_step(error)
    moment = report.moments.now if report.moments and part else None
    saved = any(manifest.sealed(run_dir))
    batches = moment.batches() if moment else []
    rung = step_down.next_rung(
        config,
        machine,
        tokens=math.prod(moment.tensors[0]["shape"]) if moment and moment.tensors else 0,
        part=part or report.phase,
        has_checkpoint=saved,
        half_helps=moment is None
        or _half_helps(moment, next((one for one in batches if one["rank"] == report.rank), {})),
    )
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
        batches=batches,
        step_down=rung,
        **_held(_size_in(error, _HELD)),
    )


def part_of_step(error: BaseException) -> str:
    """The part of a step in which an error was raised, by its traceback: forward, backward, optimizer or evaluation; or none.

    A layer that is recomputed belongs to the backward pass, and DeepSpeed takes its step where accelerate calls backward.
    """
    frames = [frame for one in _chain(error) for frame in extract_tb(one.__traceback__)]
    names = {frame.name for frame in frames}
    if "evaluation_loop" in names:
        return "evaluation"
    if _in_optimizer(StackSummary.from_list(frames)):
        return "optimizer"
    if "training_step" not in names:
        return ""
    return "backward" if "backward" in names else "forward"


def _in_optimizer(frames: StackSummary) -> bool:
    return any(
        frame.name.startswith("clip_grad_norm") or (frame.name == "step" and _OPTIMIZERS.search(frame.filename))
        for frame in frames
    )


def _half_helps(moment: Moment, batch: dict[str, Any]) -> bool:
    """Whether half as many rows would take much less: not where rows lie end to end, and one is most of them."""
    tokens, shapes = batch.get("tokens", []), [tensor["shape"] for tensor in moment.tensors]
    flat = len(tokens) > 1 and bool(shapes) and shapes[0][0] == 1
    return not flat or max(tokens) < sum(tokens) / 2


def requested(error: BaseException) -> int | None:
    """The bytes that were asked for when there were none left, as far as the error says."""
    return _size_in(error, _ASKED)


def _size_in(error: BaseException, pattern: re.Pattern[str]) -> int | None:
    for one in _chain(error):
        if found := pattern.search(str(one)):
            return int(float(found[1]) * _UNITS[found[2]])
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _held(allocated: int | None) -> dict[str, Any]:
    """What fills the memory: `memory`, `kinds` and `largest` of the report.

    `allocated` is what the error says of that moment: some of it has been freed on the way here.
    """
    found = _held_on_cuda() if torch.cuda.is_available() else _held_on_cpu()
    if allocated is not None and found:
        found["memory"]["allocated"] = allocated
    return found


def _held_on_cpu() -> dict[str, Any]:
    """By what counts live storages, where anything does."""
    counting = counter()
    if counting is None:
        return {}
    for kind, tensor in _tensors():
        if kind != "other":
            counting.name(tensor, kind)  # what does not count yet is of nobody's run
    memory = {"allocated": counting.current, "peak": counting.peak}
    if counting.budget is not None:
        memory["limit"] = counting.budget
    kinds = {kind: size for kind, size in counting.by_kind.most_common() if size > 0}
    return {"memory": memory, "kinds": kinds, "largest": counting.largest(_LARGEST)}


def _held_on_cuda() -> dict[str, Any]:
    """By the allocator's own statistics, and by the tensors that Python knows: what autograd keeps is the rest."""
    stats, (free, total) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
    memory = {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "peak": torch.cuda.max_memory_allocated(),
        "fragmented": stats.get("inactive_split_bytes.all.current", 0),
        "free": free,
        "limit": total,
    }
    groups: dict[tuple[str, tuple[int, ...], str], list[int]] = defaultdict(list)
    for kind, tensor in _on_cuda(_tensors()):
        size = tensor.untyped_storage().nbytes()
        groups[kind, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")].append(size)
    kinds: Counter[str] = Counter()
    for (kind, _, _), sizes in groups.items():
        kinds[kind] += sum(sizes)
    kinds["kept for the backward pass"] = max(0, memory["allocated"] - kinds.total())
    largest = [
        {"kind": kind, "shape": list(shape), "dtype": dtype, "count": len(sizes), "bytes": sum(sizes)}
        for (kind, shape, dtype), sizes in sorted(groups.items(), key=lambda group: -sum(group[1]))[:_LARGEST]
    ]
    return {"memory": memory, "kinds": dict(kinds), "largest": largest}


def _on_cuda(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Those on the GPU, each storage once, as the kind that comes first."""
    seen: set[int] = set()
    for kind, tensor in tensors:
        if tensor.is_cuda and (place := tensor.untyped_storage().data_ptr()) and place not in seen:
            seen.add(place)
            yield kind, tensor


def _tensors() -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that Python knows; weights, gradients and optimizer's state first, so that no view is taken for another kind."""
    known = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor | torch.optim.Optimizer)]
    tensors = [one for one in known if isinstance(one, torch.Tensor)]
    parameters = [one for one in tensors if isinstance(one, torch.nn.Parameter)]
    states = [state for one in known if isinstance(one, torch.optim.Optimizer) for state in one.state.values()]
    yield from (("weights", one) for one in parameters)
    yield from (("gradients", one.grad) for one in parameters if one.grad is not None)
    yield from (("optimizer", one) for state in states for one in state.values() if isinstance(one, torch.Tensor))
    yield from (("other", one) for one in tensors)
