"""Everything about Lathe that only a GPU can show, in eight minutes at most: one JSON, and docs/gpu.md made of it.

`python -m benchmarks.gpu [--part NAME ...] [--list] [--device cuda|cpu] [--small] [--minutes 8] [--json gpu.json] [--write]`

Each part is a process of its own with a share of the time; what a part skips for want of time it says. A part that fails or is
cut off keeps what it has measured and ends no other. Where there is no CUDA every part runs on the CPU in small, and says what was
not tried. `--write` makes docs/gpu.md of the JSON, and `--from FILE --write` of one that was measured elsewhere. Exits with 1 where
a check has failed or a part has not come to its end. Nothing is downloaded. It needs the training side alone.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_bench import Job
from benchmarks.gpu_report import NOT_ON_CUDA, document, passed

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gpu.md"


@dataclass(frozen=True)
class Part:
    """What a part shows, and its share of the time, in seconds."""

    name: str
    shows: str
    seconds: int


# Eight minutes in all, less what it takes to look at the machine and to start.
PARTS = (
    Part(
        "numbers",
        "losses of CUDA in fp32 and bf16 against fp32 on CPU, resume after a kill, a saved adapter read back",
        60,
    ),
    Part("kernels", "attention kernels on equal, padded and flat rows against fp32 on CPU", 20),
    Part("quantized", "QLoRA in 4 and 8 bits with bitsandbytes: loss, memory, compute format", 45),
    Part("probe", "the peak that the probe finds before a run against the peak of the run", 40),
    Part("out_of_memory", "memory that really runs out, and the attempts by the settings that the record proposes", 95),
    Part("memory", "forecast and simulation against torch's allocator and NVML, up to 8B shapes", 115),
    Part("throughput", "tokens per second and MFU against transformers' Trainer and trl at equal loss", 95),
)
_MINUTES = sum(part.seconds for part in PARTS) / 60


def main() -> None:
    given = arguments()
    if given.list:
        print("\n".join(f"{part.name:14}{part.seconds:5} s  {part.shows}" for part in PARTS))
        return
    found = json.loads(given.read.read_text(encoding="utf-8")) if given.read else run(given)
    if given.write:
        write(found)
    print(
        document(found) if given.markdown else f"{'passed' if passed(found) else 'FAILED'}: {given.read or given.json}"
    )
    sys.exit(not passed(found))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    names = [part.name for part in PARTS]
    parser.add_argument("--part", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--list", action="store_true", help="say what the parts are")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda where there is one")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU, as without CUDA")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="time of all parts together on CUDA")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), metavar="FILE", help="where the findings go")
    parser.add_argument("--from", dest="read", type=Path, metavar="FILE", help="measure nothing: take these findings")
    parser.add_argument("--markdown", action="store_true", help="print the page")
    parser.add_argument("--write", action="store_true", help="write docs/gpu.md")
    return parser.parse_args()


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Runs the parts one after another; the findings are written after each."""
    machine = about_machine(given.device)
    device = machine["device"]
    small = given.small or device == "cpu"
    chosen = [part for part in PARTS if part.name in given.part]
    share = given.minutes / _MINUTES
    found: dict[str, Any] = {"machine": machine, "small": small, "parts": {}}
    ends = time.monotonic() + share * sum(part.seconds for part in chosen)
    for number, part in enumerate(chosen):
        later = share * sum(one.seconds for one in chosen[number + 1 :])
        seconds = ends - later - time.monotonic()  # what earlier parts have left is not lost
        found["parts"][part.name] = run_part(part, device, small, seconds)
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
        told = found["parts"][part.name]
        failed = sum(not check["passed"] for check in told["checks"])
        checks = f"{len(told['checks'])} checks, {failed} failed, {len(told['skipped'])} skipped"
        print(f"{part.name}: {told['status']} in {told['seconds']:.0f} s, {checks}", file=sys.stderr, flush=True)
    return found


def about_machine(wanted: str | None) -> dict[str, Any]:
    """Device, card and versions, asked for in a process of its own, so that this one never holds the card."""
    asked = [sys.executable, "-m", "benchmarks.gpu_machine", *([wanted] if wanted else [])]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False, env=environment(wanted or ""))
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    machine: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return machine


def environment(device: str, *, small: bool = False) -> dict[str, str]:
    """A part's environment: the project's packages first, no hub, no card for what is to run on CPU, a thread for small models."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    shown = {
        "cpu": "",
        "cuda": (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0],
    }  # one card, whatever is there
    more = {"CUDA_VISIBLE_DEVICES": shown[device], "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if device else {}
    more |= {"OMP_NUM_THREADS": "1"} if small else {}
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"} | more


def run_part(part: Part, device: str, small: bool, seconds: float) -> dict[str, Any]:
    """The findings of a part: also of one that fails, or that takes more than its time and is ended."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lathe-gpu-") as home:
        job = Job(home, str(Path(home) / "found.json"), device, small, 0.92 * seconds)
        job.save(Path(home) / "job.json")
        limit = seconds if device == "cuda" else None
        problem = wait_for(part, Path(home), environment(device, small=small), limit)
        file = Path(job.file)
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    found = {"status": "", "checks": [], "tables": {}, "skipped": [], "notes": []} | found
    if problem:
        found |= {"status": "failed", "error": problem}
    return found | {"seconds": time.monotonic() - began}


def wait_for(part: Part, home: Path, env: dict[str, str], limit: float | None) -> str:
    """Runs a part; why it did not come to its end, or nothing. All of its processes are ended with it."""
    command = [sys.executable, "-m", "benchmarks.gpu_bench", part.name, str(home / "job.json")]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(timeout=limit)
            problem = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            problem = f"ended after {limit:.0f} s"
        finally:
            end_group(process)
    printed = (home / "log").read_text(errors="replace").strip()
    return f"{problem}: {printed[-3000:]}" if problem else ""


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a part and what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def write(found: dict[str, Any]) -> None:
    """Writes docs/gpu.md; never measurements of a CPU over those of a GPU."""
    if found["machine"]["device"] == "cpu" and PAGE.exists() and NOT_ON_CUDA not in PAGE.read_text(encoding="utf-8"):
        raise SystemExit(f"{PAGE.name} holds what was measured on CUDA; findings of a CPU do not replace it.")
    PAGE.write_text(document(found), encoding="utf-8")


if __name__ == "__main__":
    main()
