"""Runs the measurements that need a GPU, in about sixteen minutes: writes a JSON file, and docs/gpu.md from it.

`python -m benchmarks.gpu [--part NAME ...] [--list] [--device cuda|cpu] [--small] [--minutes 16] [--json gpu.json] [--write]`

Each part is a separate process with a share of the time, and reports what it skips for lack of time. If a part fails or exceeds its
time, its measurements remain and the others still run. Without CUDA every part runs with small models on the CPU and reports what
it did not test. `--write` writes docs/gpu.md from the JSON, `--from FILE --write` from a file of another machine; with
`--predict-again` it compares the memory measured there with today's forecast. Exits with 1 if a check fails or a part does not
finish. Downloads nothing, and needs only the training packages.
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

from benchmarks.gpu.bench import Job
from benchmarks.gpu.report import MARK, NOT_ON_CUDA, document, passed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gpu.md"


@dataclass(frozen=True)
class Part:
    """A part's description, its share of the time in seconds, and how many GPUs it uses at most."""

    name: str
    shows: str
    seconds: int
    gpus: int = 1


# Sixteen minutes with one GPU: on a fresh machine each run takes 15 to 40 s before its first step, mostly to import packages.
PARTS = (
    Part(
        "numbers",
        "losses on CUDA in fp32 and bf16 compared with fp32 on CPU, resuming after a kill, loading a saved adapter",
        75,
    ),
    Part("kernels", "attention kernels on equal, padded and flat rows, compared with fp32 on CPU", 55),
    Part("quantized", "QLoRA in 4 and 8 bits with bitsandbytes: loss, memory, compute format", 85),
    Part("probe", "the probe's peak memory compared with the run's", 60),
    Part("out_of_memory", "real out-of-memory errors, and attempts with the settings that the report proposes", 200),
    Part(
        "memory", "forecast and simulation compared with torch's allocator and NVML, up to the size of 8B models", 170
    ),
    Part("throughput", "tokens per second and MFU compared with transformers' Trainer and trl at equal loss", 300),
    Part(
        "ranks",
        "two GPUs under DDP, ZeRO and FSDP compared with one, and a killed rank; skipped with one GPU",
        150,
        gpus=2,
    ),
)


def main() -> None:
    options = arguments()
    if options.list:
        print("\n".join(f"{part.name:14}{part.seconds:5} s  {part.shows}" for part in PARTS))
        return
    findings = json.loads(options.read.read_text(encoding="utf-8")) if options.read else run(options)
    if options.predict_again:
        predict_again(findings)
        options.json.write_text(json.dumps(findings, indent=1), encoding="utf-8")
    if options.write:
        write(findings)
    print(
        document(findings)
        if options.markdown
        else f"{'passed' if passed(findings) else 'FAILED'}: {options.read or options.json}"
    )
    sys.exit(not passed(findings))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--part", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--list", action="store_true", help="list the parts")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if available")
    parser.add_argument("--small", action="store_true", help="use the small sizes for a CPU")
    parser.add_argument("--minutes", type=float, help="time of these parts together on CUDA; default: as --list says")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), metavar="FILE", help="write the findings there")
    parser.add_argument(
        "--from", dest="read", type=Path, metavar="FILE", help="read these findings instead of measuring"
    )
    parser.add_argument(
        "--predict-again", action="store_true", help="compare the memory that was measured with today's forecast"
    )
    parser.add_argument("--markdown", action="store_true", help="print the page")
    parser.add_argument("--write", action="store_true", help="write docs/gpu.md")
    return parser.parse_args()


def predict_again(findings: dict[str, Any]) -> None:
    """Replaces the predictions of the part memory."""
    from benchmarks.gpu.memory import predict_again as predicted

    with tempfile.TemporaryDirectory(prefix="lathe-gpu-") as home:
        findings["parts"]["memory"] = predicted(findings["parts"]["memory"], findings["machine"], Path(home))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the parts one after another, and writes the findings after each."""
    machine = about_machine(options.device)
    device = machine["device"]
    small = options.small or device == "cpu"
    chosen = [part for part in PARTS if part.name in options.part]
    usual = sum(part.seconds for part in chosen)
    share = 60 * options.minutes / usual if options.minutes else 1.0
    findings: dict[str, Any] = {"machine": machine, "small": small, "parts": {}}
    ends = time.monotonic() + share * usual
    for number, part in enumerate(chosen):
        later = share * sum(item.seconds for item in chosen[number + 1 :])
        seconds = ends - later - time.monotonic()  # includes time left by earlier parts
        findings["parts"][part.name] = run_part(part, device, small, seconds)
        options.json.write_text(json.dumps(findings, indent=1), encoding="utf-8")
        result = findings["parts"][part.name]
        failed = sum(not check["passed"] for check in result["checks"])
        checks = f"{len(result['checks'])} checks, {failed} failed, {len(result['skipped'])} skipped"
        print(f"{part.name}: {result['status']} in {result['seconds']:.0f} s, {checks}", file=sys.stderr, flush=True)
    return findings


def about_machine(device: str | None) -> dict[str, Any]:
    """Returns device, GPU and versions, queried in another process, so that this one never uses the GPU."""
    command = [sys.executable, "-m", "benchmarks.gpu.machine", *([device] if device else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment(device or ""))
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    machine: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return machine


def environment(device: str, *, small: bool = False, gpus: int = 1) -> dict[str, str]:
    """Returns a part's environment: the project's packages first, no hub, no GPU for CPU parts, one thread for small models."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(",")
    shown = {"cpu": "", "cuda": ",".join(visible[:gpus])}  # those of the part, however many there are
    more = {"CUDA_VISIBLE_DEVICES": shown[device], "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if device else {}
    more |= {"OMP_NUM_THREADS": "1"} if small else {}
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"} | more


def run_part(part: Part, device: str, small: bool, seconds: float) -> dict[str, Any]:
    """Returns the findings of a part, also if it fails or exceeds its time."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lathe-gpu-") as home:
        job = Job(home, str(Path(home) / "found.json"), device, small, 0.92 * seconds)
        job.save(Path(home) / "job.json")
        limit = seconds if device == "cuda" else None
        problem = wait_for(part, Path(home), environment(device, small=small, gpus=part.gpus), limit)
        file = Path(job.file)
        findings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    findings = {"status": "", "checks": [], "tables": {}, "skipped": [], "notes": []} | findings
    if problem:
        findings |= {"status": "failed", "error": problem}
    return findings | {"seconds": time.monotonic() - began}


def wait_for(part: Part, home: Path, env: dict[str, str], limit: float | None) -> str:
    """Runs a part and ends all of its processes. Returns why it did not finish, or an empty text."""
    command = [sys.executable, "-m", "benchmarks.gpu.bench", part.name, str(home / "job.json")]
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
    """Ends a part and its child processes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def write(findings: dict[str, Any]) -> None:
    """Writes docs/gpu.md below what people wrote there, but never replaces GPU measurements by CPU ones."""
    if findings["machine"]["device"] == "cpu" and PAGE.exists() and NOT_ON_CUDA not in PAGE.read_text(encoding="utf-8"):
        raise SystemExit(f"{PAGE.name} contains measurements on CUDA; measurements on a CPU do not replace them.")
    before, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK) if PAGE.exists() else ("", "", "")
    PAGE.write_text((before + mark + "\n\n" if mark else "") + document(findings), encoding="utf-8")
