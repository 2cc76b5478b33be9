"""Measures Lathe's overhead over a bare script: steps per second, and the time from submit to the first step.

`python -m benchmarks.overhead [--repeats 5] [--steps 150] [--json]` trains the same model on the same rows with the same
settings, in turn as a bare script under `accelerate launch` (benchmarks/bare_train.py) and through Lathe (database, queue,
worker, supervisor, reports, Lathe's order of rows). It prints the medians of both, and of the ratios and differences per pair.

The bare script's time starts with its process, Lathe's with `submit`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
Stamps = list[tuple[int, float]]  # step, seconds since the epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="lathe-overhead-"))
    os.environ |= {"LATHE_DATA_DIR": str(home / "data"), "LATHE_DEVICES": "cpu"}
    try:
        print(report(measure(home, arguments.repeats, arguments.steps), as_json=arguments.json))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measure(home: Path, repeats: int, steps: int) -> list[dict[str, float]]:
    """Returns one row of figures per pair of runs; the first pair warms caches and does not count."""
    from worker.settings import get_settings
    from worker.store.database import migrate

    (home / "data").mkdir()
    migrate()
    settings = get_settings()
    with Services(settings):
        pairs = []
        for number in range(repeats + 1):
            trained = {}
            for name in (
                ("bare", "lathe") if number % 2 else ("lathe", "bare")
            ):  # alternate, since machines slow down as they heat up
                bare = name == "bare"
                trained[name] = (
                    train_bare(home / f"bare{number}", steps) if bare else train_through_lathe(settings.runs_dir, steps)
                )
            pairs.append(
                {f"{name}_{figure}": value for name, figures in trained.items() for figure, value in figures.items()}
            )
            print(f"pair {number}: {json.dumps(pairs[-1])}", file=sys.stderr)
        return pairs[1:]


class Services:
    """The embedded broker and one worker, as `lathe up` starts them."""

    def __init__(self, settings: Any) -> None:
        from worker.queue import local_broker
        from worker.queue.tasks import worker_command

        self._broker = local_broker.start(settings)
        self._worker = subprocess.Popen(
            worker_command(), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> None:
        time.sleep(5)  # the worker connects

    def __exit__(self, *_: object) -> None:
        from worker.queue import local_broker

        self._worker.terminate()
        self._worker.wait(timeout=30)
        local_broker.stop(self._broker)


def settings_of(steps: int) -> dict[str, Any]:
    return {
        "model": str(ROOT / "static/starter"),
        "data": str(ROOT / "static/starter/train.jsonl"),
        "eval_split": 0,
        "max_steps": steps,
        "micro_batch_size": 8,
        "learning_rate": 1e-3,
        "lora_r": 8,
        "lora_alpha": 16,
        "target_modules": "all-linear",
        "logging_steps": 1,
        "save_steps": 0,
        "warmup": 0,
        "seed": 1,
    }


def train_bare(folder: Path, steps: int) -> dict[str, float]:
    folder.mkdir()
    file = folder / "settings.json"
    file.write_text(json.dumps(settings_of(steps) | {"output": str(folder / "out")}))
    environment = os.environ | {"OMP_NUM_THREADS": str(os.cpu_count() or 1), "TOKENIZERS_PARALLELISM": "true"}
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "1",
        "--num_machines",
        "1",
    ]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--module", "benchmarks.bare_train", str(file)]
    began = time.time()
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]
    return figures(began, [(line["step"], line["time"]) for line in lines]) | {"final_loss": lines[-1]["loss"]}


def train_through_lathe(runs_dir: Path, steps: int) -> dict[str, float]:
    from training.config.fields import parse
    from training.run_folder.events import Metrics, decode
    from worker.runs.submit import submit

    began = time.time()
    run = submit(parse(settings_of(steps)))
    log = runs_dir / run.id / "events.jsonl"
    wait_until_closed(run.id)
    events = [decode(line) for line in log.read_bytes().splitlines()]
    stamped = [event for event in events if isinstance(event, Metrics) and "loss" in event.values]
    return figures(began, [(e.step, e.time) for e in stamped]) | {"final_loss": float(stamped[-1].values["loss"] or 0)}


def wait_until_closed(run_id: str) -> None:
    """Waits until the run has ended and its device is free."""
    from worker.store import runs
    from worker.store.database import read
    from worker.store.tables import Status

    while True:
        with read() as session:
            status = runs.get(session=session, run_id=run_id).status
        if status is Status.FINISHED:
            return
        if status.ended:
            raise SystemExit(f"run {run_id} {status.value}")
        time.sleep(0.5)  # rarely, since checking takes time from training


def figures(began: float, stamps: Stamps) -> dict[str, float]:
    """Returns the seconds to the first step, and the steps per second after it."""
    (first, first_time), (last, last_time) = stamps[0], stamps[-1]
    return {"seconds_to_first_step": first_time - began, "steps_per_second": (last - first) / (last_time - first_time)}


def report(pairs: list[dict[str, float]], *, as_json: bool) -> str:
    ratios = [pair["lathe_steps_per_second"] / pair["bare_steps_per_second"] for pair in pairs]
    delays = [pair["lathe_seconds_to_first_step"] - pair["bare_seconds_to_first_step"] for pair in pairs]
    medians = {name: statistics.median(pair[name] for pair in pairs) for name in pairs[0]}
    result = medians | {
        "pairs": len(pairs),
        "steps_per_second_ratio": statistics.median(ratios),
        "steps_per_second_ratios": ratios,
        "extra_seconds_to_first_step": statistics.median(delays),
        "extra_seconds": delays,
    }
    if as_json:
        return json.dumps(result, indent=2)
    return "\n".join(
        [
            f"{'':28}{'bare script':>14}{'Lathe':>14}",
            f"{'steps/s':28}{medians['bare_steps_per_second']:14.2f}{medians['lathe_steps_per_second']:14.2f}",
            f"{'s to the first step':28}{medians['bare_seconds_to_first_step']:14.2f}"
            f"{medians['lathe_seconds_to_first_step']:14.2f}",
            f"{'final loss':28}{medians['bare_final_loss']:14.4f}{medians['lathe_final_loss']:14.4f}",
            f"steps/s, Lathe / bare, median of {len(pairs)} pairs: {result['steps_per_second_ratio']:.3f}"
            f" ({min(ratios):.3f} to {max(ratios):.3f})",
            f"extra seconds to the first step: {result['extra_seconds_to_first_step']:+.2f}"
            f" ({min(delays):+.2f} to {max(delays):+.2f})",
        ]
    )


if __name__ == "__main__":
    main()
