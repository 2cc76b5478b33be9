"""Prints device and versions for benchmarks/gpu/command.py as JSON: `python -m benchmarks.gpu.machine [cuda|cpu]`."""

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "transformers", "peft", "accelerate", "trl", "bitsandbytes", "datasets", "flash-attn")


def main() -> None:
    import torch

    device = sys.argv[1] if len(sys.argv) > 1 else ""
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise SystemExit("--device cuda: torch sees no CUDA device here. Leave it out to run on the CPU in small.")
    result = {"device": "cuda" if there and device != "cpu" else "cpu", "python": platform.python_version()}
    result |= {name: installed for name in PACKAGES if (installed := version_of(name))}
    if result["device"] == "cuda":
        result |= {"card": torch.cuda.get_device_name(0), "cuda": str(torch.version.cuda)}
        result["memory"] = f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.1f} GiB"
    print(json.dumps(result))


def version_of(package: str) -> str:
    """Returns the installed version, or an empty value."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
