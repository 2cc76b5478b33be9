"""The script of somebody who fine-tuned with OpenAI's client, run against Lathe: what the models answer before and after.

    python -m benchmarks.fine_tuning_api [--method supervised dpo reinforcement] [--json]

It starts `lathe up` in a folder of its own and uses the client's calls only. The starter model learns from orders: to write them as
JSON (supervised, then dpo on its result), and to answer with the city alone (reinforcement with a grader). While the first job
runs, the web server is ended and started again. Answers are those of /v1/chat/completions to held-out orders.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import psutil

from worker.settings import ROOT

STARTER = ROOT / "static" / "starter"
GRADER = {
    "type": "string_check",
    "name": "city",
    "input": "{{sample.output_text}}",
    "reference": "{{item.city}}",
    "operation": "eq",
}
METHODS = ("supervised", "dpo", "reinforcement")
_LATHE = {"max_length": 256}
_LORA = {"target_modules": "all-linear", "lora_r": 16}
_SHORT = _LORA | {"max_completion_length": 12, "max_steps": 20, "lr_scheduler": "constant"}
_JSON_TOKENS, _CITY_TOKENS = 80, 12
_SUPERVISED = {"n_epochs": 1, "batch_size": 16, "learning_rate_multiplier": 15}
_DPO = {"n_epochs": 1, "batch_size": 8, "beta": 0.1}
_REINFORCEMENT = {"batch_size": 4, "learning_rate_multiplier": 300}
_ENDED = ("succeeded", "failed", "cancelled")
_STARTS_IN = 180.0

Turns = list[dict[str, str]]


@contextmanager
def server(folder: Path) -> Iterator[tuple[openai.OpenAI, int]]:
    """A client of `lathe up` in the folder, and its process id."""
    output = folder / "up.txt"
    variables = {"LATHE_DATA_DIR": str(folder / "data"), "LATHE_PORT": "0", "LATHE_DEVICES": "cpu"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}
    with output.open("wb") as file:
        command = [sys.executable, "-m", "app.cli", "up"]
        process = subprocess.Popen(
            command, cwd=ROOT, env=kept | variables, stdout=file, stderr=file, stdin=subprocess.DEVNULL
        )
    try:
        deadline = time.monotonic() + _STARTS_IN
        while not (found := re.search(r"^Lathe is running at (\S+)$", output.read_text(), re.MULTILINE)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(output.read_text())
            time.sleep(0.2)
        token = (folder / "data" / "token").read_text().strip()
        yield openai.OpenAI(base_url=f"{found[1]}/v1", api_key=token, max_retries=20), process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def orders(name: str) -> list[Turns]:
    return [json.loads(line)["messages"] for line in (STARTER / name).read_text().splitlines()]


def city(turns: Turns) -> str:
    return str(json.loads(turns[-1]["content"])["city"])


def lines(rows: Sequence[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def in_order(turns: Turns) -> Any:
    """A pair of answers: as it was asked for, and with its values in capitals."""
    question, answer = turns
    return {
        "input": {"messages": [question]},
        "preferred_output": [answer],
        "non_preferred_output": [answer | {"content": answer["content"].upper()}],
    }


def ended(client: openai.OpenAI, job: Any) -> Any:
    """The job when it has ended."""
    while (found := client.fine_tuning.jobs.retrieve(job.id)).status not in _ENDED:
        time.sleep(0.5)
    if found.status != "succeeded":
        raise SystemExit(f"{found.status}: {found.error}")
    return found


def share(client: openai.OpenAI, model: str, asked: Sequence[tuple[Turns, str]], tokens: int) -> float:
    """The share of the held-out orders that the model answers as expected, in percent."""
    right = 0
    for turns, expected in asked:
        answer = client.chat.completions.create(model=model, messages=turns, temperature=0, max_tokens=tokens)  # type: ignore[arg-type]
        right += (answer.choices[0].message.content or "").strip() == expected
    return 100 * right / len(asked)


def restarted(process: int) -> None:
    """Ends the web server of `lathe up`, which starts it again."""
    for child in psutil.Process(process).children():
        if any("app.server" in part for part in child.cmdline()):
            child.terminate()


def run(methods: Sequence[str], held_out: int) -> dict[str, Any]:
    train, held = orders("train.jsonl"), orders("heldout.jsonl")[:held_out]
    as_json = [(turns[:-1], turns[-1]["content"]) for turns in held]
    as_city = [(turns[:-1], city(turns)) for turns in held]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="lathe-openai-") as name, server(Path(name)) as (client, process):

        def trained(method: str, rows: Sequence[Any], model: str, lathe: dict[str, Any], **given: Any) -> str:
            file = client.files.create(file=(f"{method}.jsonl", lines(rows)), purpose="fine-tune")
            asked: Any = {"type": method, method: given}
            job = client.fine_tuning.jobs.create(
                model=model, training_file=file.id, method=asked, suffix=method, extra_body={"lathe": _LATHE | lathe}
            )
            if not found:
                restarted(process)
            began = time.monotonic()
            job = ended(client, job)
            found[method] = {"seconds": round(time.monotonic() - began)}
            return str(job.fine_tuned_model)

        def compared(method: str, result: str, asked: Sequence[tuple[Turns, str]], tokens: int) -> None:
            for when, model in (("before", f"{result}:base"), ("after", result)):
                found[method][when] = share(client, model, asked, tokens)

        result = "starter"
        if "supervised" in methods:
            rows = [{"messages": turns} for turns in train]
            result = trained("supervised", rows, result, _LORA, hyperparameters=_SUPERVISED)
            compared("supervised", result, as_json, _JSON_TOKENS)
        if "dpo" in methods:
            result = trained("dpo", [in_order(turns) for turns in train[:160]], result, {}, hyperparameters=_DPO)
            compared("dpo", result, as_json, _JSON_TOKENS)
        if "reinforcement" in methods:
            prompts = [{"messages": turns[:-1], "city": city(turns)} for turns in train]
            result = trained("reinforcement", prompts, "starter", _SHORT, grader=GRADER, hyperparameters=_REINFORCEMENT)
            compared("reinforcement", result, as_city, _CITY_TOKENS)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--held-out", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = run(options.method, options.held_out)
    if options.json:
        print(json.dumps(found))
        return
    print(
        f"{'method':<14} {'before':>8} {'after':>8} {'seconds':>8}   right answers of {options.held_out} held-out orders"
    )
    for method, values in found.items():
        print(f"{method:<14} {values['before']:>7.1f}% {values['after']:>7.1f}% {values['seconds']:>8}")


if __name__ == "__main__":
    main()
