"""Compares tokenizing with Lathe and with `datasets.map`: rows per second and memory.

`python -m benchmarks.tokenise [--rows 1000000] [--repeats 1] [--model static/starter] [--json]` writes rows of prompt and
completion. Each tool reads the same JSONL with the same tokenizer, in turn and in its own process:

- lathe: `training.tokens.make_store`, which also finds lengths, duplicates, near duplicates and writing systems;
- datasets: `load_dataset("json")` and the usual `map(batched=True)`, which makes input_ids and labels of prompt + completion.

It measures from process start to end, with a quarter of the rows and with all: equal memory means constant memory. `peak` is the
sampled maximum of anonymous memory, `resident` also includes mapped file pages.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLE_SECONDS = 0.05
Command = Callable[[Path, Path, str], list[str]]


@dataclass(frozen=True)
class Figure:
    """The figures of one tool on a number of rows."""

    tool: str
    rows: int
    seconds: float
    rows_per_second: float
    peak_mib: float
    resident_mib: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--model", default=str(ROOT / "static" / "starter"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="lathe-tokenise-"))
    try:
        figures = measure(home, options.rows, options.repeats, options.model)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps([asdict(figure) for figure in figures], indent=2) if options.json else table(figures))


def measure(home: Path, rows: int, repeats: int, model: str) -> list[Figure]:
    """Runs every tool in turn on a quarter of the rows and on all, `repeats` times."""
    figures = []
    for count in (rows // 4, rows):
        source = home / f"{count}.jsonl"
        write_rows(source, count)
        for repeat in range(repeats):
            # Alternate, since machines slow down as they heat up.
            for tool in ("lathe", "datasets") if repeat % 2 == 0 else ("datasets", "lathe"):
                figures.append(run(tool, COMMANDS[tool](source, home / "made", model), count))
                print(json.dumps(asdict(figures[-1])), file=sys.stderr)
                shutil.rmtree(home / "made", ignore_errors=True)
        source.unlink()
    return figures


def write_rows(path: Path, count: int) -> None:
    """Writes distinct rows of about 40 words, the same in every call."""
    draw = random.Random(1)
    syllables = [a + b for a in "bdfgklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "ing")]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(20_000)]
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(count):
            prompt, answer = (" ".join(draw.choices(words, k=draw.randint(5, 35))) for _ in range(2))
            stream.write(json.dumps({"prompt": f"{prompt}: ", "completion": answer}) + "\n")


def run(tool: str, command: list[str], rows: int) -> Figure:
    """Runs a tool and samples its memory."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "TOKENIZERS_PARALLELISM": "true",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    own = resident = 0
    while process.poll() is None:
        now = memory(process.pid)
        own, resident = max(own, now[0]), max(resident, now[1])
        time.sleep(SAMPLE_SECONDS)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"{tool} failed with exit code {process.returncode}")
    return Figure(tool, rows, seconds, rows / seconds, own / 1024, resident / 1024)


def memory(pid: int) -> tuple[int, int]:
    """Returns (anonymous, resident) memory of a process in KiB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    values = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "VmRSS"))}
    return values.get("RssAnon", 0), values.get("VmRSS", 0)


def table(figures: list[Figure]) -> str:
    """Returns the medians, a line for each tool and number of rows, and the ratios for all rows."""
    lines = [f"{'tool':10}{'rows':>10}{'seconds':>10}{'rows/s':>10}{'peak MiB':>10}{'resident MiB':>14}"]
    speeds = {}
    for tool, rows in dict.fromkeys((figure.tool, figure.rows) for figure in figures):
        mine = [figure for figure in figures if (figure.tool, figure.rows) == (tool, rows)]
        seconds, speed, peak, resident = (
            statistics.median(getattr(figure, name) for figure in mine)
            for name in ("seconds", "rows_per_second", "peak_mib", "resident_mib")
        )
        lines.append(f"{tool:10}{rows:10,}{seconds:10.1f}{speed:10,.0f}{peak:10.0f}{resident:14.0f}")
        speeds[tool] = speed
    return "\n".join([*lines, f"lathe / datasets, rows per second: {speeds['lathe'] / speeds['datasets']:.2f}"])


def with_datasets(source: str, target: str, model: str) -> None:
    """The usual recipe with datasets, run in its own process."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    end = tokenizer.eos_token_id

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        prompts = tokenizer(batch["prompt"])["input_ids"]
        texts = [prompt + answer for prompt, answer in zip(batch["prompt"], batch["completion"], strict=True)]
        whole = [[*ids, end] for ids in tokenizer(texts)["input_ids"]]
        labels = [[-100] * len(asked) + ids[len(asked) :] for asked, ids in zip(prompts, whole, strict=True)]
        return {"input_ids": whole, "labels": labels}

    rows = load_dataset("json", data_files=source, split="train", cache_dir=target)
    rows.map(encode, batched=True, remove_columns=rows.column_names)


COMMANDS: dict[str, Command] = {
    "lathe": lambda source, made, model: [
        *(
            sys.executable,
            "-m",
            "training.tokens.make_store",
            str(source),
            "--model",
            model,
            "--into",
            str(made / "store"),
        )
    ],
    "datasets": lambda source, made, model: [
        *(
            sys.executable,
            "-c",
            "import sys; from benchmarks.tokenise import with_datasets; with_datasets(*sys.argv[1:])",
        ),
        *(str(source), str(made), model),
    ],
}


if __name__ == "__main__":
    main()
