"""A program that tries this machine's visible devices: kernels in each precision, and the links between them. Prints JSON.

`python -m training.ranks.device_check [PROCESSES]`; links are measured between PROCESSES devices, by default none.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from training.ranks.node_links import Link, measure

_SIZE, _VALUE = 256, 0.5
_EXPECTED = _SIZE * _VALUE**2  # exact in every precision
_PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)


def main(arguments: list[str]) -> None:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.device("cuda", index) for index in range(gpus)] or [torch.device("cpu")]
    processes = int(arguments[0]) if arguments else 1
    answer = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "gpus": gpus,
        "accelerator": accelerator(),
        "devices": [tried(device) for device in devices],
        "links": [asdict(link) for link in links(processes)] if processes > 1 else [],
    }
    print(json.dumps(answer))


def accelerator() -> str:
    """What torch computes on besides the CPU, by its own interface: cuda, rocm (AMD's), mps (Apple's), ...; "" if on nothing."""
    current = torch.accelerator.current_accelerator(check_available=True)
    if current is None:
        return ""
    return "rocm" if current.type == "cuda" and torch.version.hip else current.type


def tried(device: torch.device) -> dict[str, Any]:
    """Multiplies matrices in each precision: `problems` by precision, and the `seconds` that it took."""
    began, problems = time.monotonic(), {}
    for precision in _PRECISIONS:
        try:
            matrix = torch.full((_SIZE, _SIZE), _VALUE, dtype=precision, device=device, requires_grad=True)
            product = matrix @ matrix
            product.float().sum().backward()  # type: ignore[no-untyped-call]
            if not torch.all(product == _EXPECTED) or matrix.grad is None or not matrix.grad.isfinite().all():
                problems[str(precision).removeprefix("torch.")] = "a product of matrices is wrong"
        except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
            problems[str(precision).removeprefix("torch.")] = str(error).strip().splitlines()[0]
    return {"device": str(device), "problems": problems, "seconds": time.monotonic() - began}


def links(processes: int) -> list[Link]:
    """The latency and bandwidth between each two of the devices, one process each."""
    from torch.multiprocessing.spawn import spawn

    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (processes, folder), nprocs=processes)  # type: ignore[no-untyped-call]
        measured = [Link(**link) for file in Path(folder).glob("*.json") for link in json.loads(file.read_text())]
    return sorted(measured, key=lambda link: (link.first, link.second))


def _rank(rank: int, processes: int, folder: str) -> None:
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=processes
    )
    own = measure(range(processes), rank, device)
    (Path(folder) / f"{rank}.json").write_text(json.dumps([asdict(link) for link in own]), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
