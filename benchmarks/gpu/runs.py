"""Inputs and runs of the real training program for the parts of benchmarks/gpu/command.py."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench
from training.config.run_config import RunConfig
from training.run_folder.events import Event, Failed, Finished, Metrics, OutOfMemory, decode
from worker.supervision.launcher import launch

ROOT = Path(__file__).parents[2]
BASE: dict[str, Any] = {
    "eval_split": 0, "eval_steps": 0, "save_steps": 0, "logging_steps": 1, "lr_scheduler": "constant", "warmup": 0,
    "probe": "off", "max_length": 256, "learning_rate": 1e-3, "on_out_of_memory": "fail",
}  # fmt: skip
_WORDS = ("north", "east", "south", "west", "river", "stone", "field", "house")


@dataclass(frozen=True)
class Run:
    """A finished run of the training program: its exit code, records and log."""

    folder: Path
    code: int
    events: list[Event]
    late: str = ""

    def series(self, name: str) -> dict[int, float]:
        """Returns a metric by step; for a step trained twice, the later value."""
        points = [event for event in self.events if isinstance(event, Metrics) and name in event.values]
        return {event.step: float(event.values[name] or 0) for event in points}

    @property
    def summary(self) -> dict[str, Any]:
        return next((dict(item.summary) for item in reversed(self.events) if isinstance(item, Finished)), {})

    @property
    def out_of_memory(self) -> list[OutOfMemory]:
        """Returns the out-of-memory records, one per attempt."""
        return [event for event in self.events if isinstance(event, OutOfMemory)]

    @property
    def problem(self) -> str:
        """Why the run did not finish, or an empty text."""
        if self.late or (self.code == 0 and self.summary):
            return self.late
        failed = next((item.message for item in reversed(self.events) if isinstance(item, Failed)), "")
        return failed or f"exit code {self.code}: {(self.folder / 'output.log').read_text(errors='replace')[-800:]}"


def make_model(folder: Path, *, hidden: int, layers: int) -> Path:
    """Makes a Llama with random weights and a byte tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from benchmarks.matrix.inputs import byte_tokenizer

    tokenizer = byte_tokenizer()
    heads = max(1, hidden // 64)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=-(-hidden * 11 // 256) * 64,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=4096, pad_token_id=0, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_rows(file: Path, rows: int, longest: int) -> Path:
    """Makes rows of different lengths up to `longest` bytes, whose answers repeat words of their prompts."""
    lines = []
    for number in range(rows):
        size = longest // 8 + (number * 7919) % (longest // 2)
        words = " ".join(_WORDS[(number * 3 + place * 5) % len(_WORDS)] for place in range(size // 6 + 1))
        lines.append(
            json.dumps({"prompt": f"{number}: {words[: size // 3]} -> ", "completion": words[: size // 2 + 1]})
        )
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def configured(model: Path, data: Path, **settings: Any) -> RunConfig:
    """Returns a run's configuration, with this file's defaults."""
    return RunConfig.model_validate({"model": str(model), "data": str(data)} | BASE | settings)


def start(folder: Path, config: RunConfig, device: str, cores: int) -> subprocess.Popen[bytes]:
    """Starts or resumes the training program in its folder, as the supervisor does."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config.model_dump_json(), encoding="utf-8")
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[: config.num_processes]
    devices = [f"here/cuda:{number}" for number in visible] if device == "cuda" else ["here/cpu"]
    command = launch(config, folder, devices, cores)
    with (folder / "output.log").open("ab") as log:
        return subprocess.Popen(
            command.argv, env=os.environ | command.env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            cwd=folder,
        )  # fmt: skip


def records(folder: Path) -> list[Event]:
    """Returns the records of a run."""
    file = folder / "events.jsonl"
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    return [event for line in lines if line.endswith(b"\n") and (event := decode(line))]


def train(folder: Path, config: RunConfig, device: str, seconds: float, cores: int = 0) -> Run:
    """Runs the training program, for at most `seconds`."""
    process, late = start(folder, config, device, cores or threads()), ""
    try:
        code = process.wait(timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        code, late = end(process), f"did not finish in {seconds:.0f} s"
    return Run(folder, code, records(folder), late)


def train_until(folder: Path, config: RunConfig, device: str, seconds: float, seen: Callable[[Event], bool]) -> bool:
    """Runs the training program and kills it when a record appears. True if it was killed before its end."""
    process = start(folder, config, device, threads())
    ends = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < ends:
        if any(seen(event) for event in records(folder)):
            end(process)
            return not any(isinstance(event, Finished) for event in records(folder))
        time.sleep(0.005)
    end(process)
    return False


def end(process: subprocess.Popen[bytes]) -> int:
    """Kills a launcher and with it its rank."""
    process.send_signal(signal.SIGKILL)
    return process.wait()


def threads() -> int:
    """Returns the number of threads of a process; small models use one, since more would only wait for each other."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def train_all(bench: Bench, jobs: Mapping[str, tuple[RunConfig, str]]) -> dict[str, Run]:
    """Runs several configurations on their devices, in parallel if there are enough cores."""
    together = max(1, min(len(jobs), (os.cpu_count() or 1) // 2))

    def one(job: tuple[str, tuple[RunConfig, str]]) -> Run:
        name, (config, device) = job
        seconds = bench.left() if bench.on_cuda else 600.0
        return train(bench.home / name.replace(" ", "-"), config, device, seconds, max(1, threads() // together))

    with ThreadPoolExecutor(together) as pool:
        return dict(zip(jobs, pool.map(one, jobs.items()), strict=True))


def worst_difference(curve: Mapping[int, float], expected: Mapping[int, float]) -> float:
    """Returns the largest relative difference of two series; NaN if their steps differ or they are empty."""
    if not expected or set(curve) != set(expected):
        return float("nan")
    return max(abs(curve[step] - value) / max(abs(value), 1e-12) for step, value in expected.items())
