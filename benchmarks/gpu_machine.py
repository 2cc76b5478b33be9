"""Prints what benchmarks/gpu.py runs on as JSON: `python -m benchmarks.gpu_machine [cuda|cpu]`."""

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "transformers", "peft", "accelerate", "trl", "bitsandbytes", "datasets", "flash-attn")


def main() -> None:
    import torch

    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise SystemExit("--device cuda: torch sees no CUDA device here. Leave it out to run on the CPU in small.")
    found = {"device": "cuda" if there and wanted != "cpu" else "cpu", "python": platform.python_version()}
    found |= {name: installed for name in PACKAGES if (installed := version_of(name))}
    if found["device"] == "cuda":
        found |= {"card": torch.cuda.get_device_name(0), "cuda": str(torch.version.cuda)}
        found["memory"] = f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.1f} GiB"
    print(json.dumps(found))


def version_of(package: str) -> str:
    """The installed version; nothing where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
