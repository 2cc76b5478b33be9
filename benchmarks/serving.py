"""Measures what clients of several models get from one serving process: two adapters on one base model, and another base model.

    python -m benchmarks.serving [--clients 2 8] [--seconds 150] [--json]

It starts a web server on a temporary installation, does a worker's rounds, and lets each client ask its model again and again,
with and without a stream, as OpenAI's clients do: after a 503 they try again. A client's longest wait is compared with its fair
share: the turns of the other base models with the time that loading took, and one answer for each client.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save_file
from sqlmodel import col, select

from training.config.run_config import RunConfig
from training.run_folder.paths import checkpoint_dir
from worker.settings import ROOT, get_settings

STARTER = ROOT / "static" / "starter"
CHECKPOINTS = (1, 2)
MAX_TOKENS = 12
ROUND_SECONDS = 5.0


@dataclass
class Client:
    """A client: its model, the seconds that each of its answers took, those of them in which its model answered it, and what went
    wrong."""

    model: str
    seconds: list[float] = field(default_factory=list)
    answering: list[float] = field(default_factory=list)
    told_to_wait: int = 0
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """What clients got. Times are in seconds; `share` is the longest wait as a share of what is fair."""

    clients: int
    answers: list[int]
    lost: int
    told_to_wait: int
    turns: int
    load_seconds: float
    median_seconds: float
    longest_wait: float
    fair_wait: float

    @property
    def share(self) -> float:
        return self.longest_wait / self.fair_wait


def main(arguments: list[str]) -> int:
    """Prints a line for each number of clients. Returns 1 if an answer was lost or a client waited more than twice its share."""
    parser = argparse.ArgumentParser(prog="benchmarks.serving")
    parser.add_argument("--clients", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="lathe-serving-") as folder, installation(Path(folder)) as (address, names):
        results = [measure(address, names, clients, given.seconds) for clients in given.clients]
    for one in results:
        shown = json.dumps(asdict(one) | {"share": one.share}) if given.json else _line(one)
        print(shown, flush=True)
    return int(any(one.lost or one.share > 2 for one in results))


def _line(one: Result) -> str:
    return (
        f"{one.clients} clients: {sum(one.answers)} answers ({', '.join(map(str, one.answers))}), {one.lost} lost, "
        f"{one.told_to_wait} told to wait, {one.turns} turns, loading {one.load_seconds:.1f} s, median "
        f"{one.median_seconds:.2f} s, longest wait {one.longest_wait:.1f} s = {one.share:.2f} of its fair share"
    )


@contextmanager
def installation(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server and a worker's rounds in a folder. Yields the address and the names of the models, on two bases in turn."""
    os.environ["LATHE_DATA_DIR"] = str(folder / "home")
    get_settings.cache_clear()
    sys.path.insert(0, str(ROOT / "tests"))
    from web import server  # type: ignore[import-not-found]

    from worker.queue.reaper import serve_round
    from worker.serving import processes
    from worker.store import database

    get_settings().make_folders()
    database.migrate()
    names, over = _models(folder), threading.Event()

    def rounds() -> None:
        while not over.is_set():
            serve_round()
            over.wait(ROUND_SECONDS)

    worker = threading.Thread(target=rounds, name="worker")
    with server(folder / "home") as web:
        worker.start()
        try:
            yield web.address, names
        finally:
            over.set()
            worker.join()
            processes.stop()
            processes.wait_for_ends()


def _models(folder: Path) -> list[str]:
    """Two stopped runs on two base models, the first with two checkpoints of adapters."""
    from worker.store import claims, database, runs
    from worker.store.tables import Status

    other = shutil.copytree(STARTER, folder / "other")
    ids = []
    for model in (STARTER, other):
        config = RunConfig(model=str(model), data=str(STARTER / "train.jsonl"))
        with database.write() as session:
            run = runs.create(session=session, config=config, dataset_id=None)
            claims.claim(
                session=session, run_id=run.id, owner="elsewhere:1:1", devices=["elsewhere/cpu"], lease_seconds=60
            )
            claims.finish(session=session, run_id=run.id, attempt=1, status=Status.STOPPED)
        ids.append(run.id)
    for step in CHECKPOINTS:
        _adapter(checkpoint_dir(get_settings().runs_dir / ids[0], step), step)
    first, second = (f"{ids[0]}:checkpoint-{step}" for step in CHECKPOINTS)
    return [first, f"{ids[1]}:base", second]


def _adapter(folder: Path, seed: int) -> None:
    """A sealed checkpoint with a LoRA adapter of random weights."""
    from training.run_folder.checkpoints import seal

    sizes, random = json.loads((STARTER / "config.json").read_text()), np.random.default_rng(seed)
    hidden = sizes["hidden_size"]
    out = sizes["num_attention_heads"] * sizes.get("head_dim", hidden // sizes["num_attention_heads"])
    folder.mkdir(parents=True)
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    shapes = {"A": (4, hidden), "B": (out, 4)}
    weights = {key.format(name): random.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    seal(folder)


def measure(address: str, names: list[str], clients: int, seconds: float) -> Result:
    """Lets clients ask for so many seconds, and waits for their last answers."""
    began, until = time.time(), time.monotonic() + seconds
    asking = [Client(names[number % len(names)]) for number in range(clients)]
    threads = [threading.Thread(target=_ask, args=(address, one, number, until)) for number, one in enumerate(asking)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    turns, load = _turns(began)
    times = [one for client in asking for one in client.seconds]
    median = statistics.median(times) if times else 0.0
    bases = len({client.model.partition(":")[0] for client in asking})
    answering = statistics.median([one for client in asking for one in client.answering] or [0.0])
    fair = (bases - 1) * (get_settings().serve_tenure + load) + load + clients * answering
    lost, told = sum(len(one.lost) for one in asking), sum(one.told_to_wait for one in asking)
    for reason in {reason for one in asking for reason in one.lost}:
        print(f"lost: {reason}", file=sys.stderr)
    return Result(
        clients, [len(one.seconds) for one in asking], lost, told, turns, load, median, max(times, default=0.0), fair
    )


def _turns(began: float) -> tuple[int, float]:
    """How many processes served since a time, and the median seconds between the end of one and the next one's first answer."""
    from worker.store import database
    from worker.store.tables import ServedModel

    with database.read() as session:
        statement = select(ServedModel).where(col(ServedModel.ready_at) > began).order_by(col(ServedModel.ready_at))
        rows = list(session.exec(statement))
    gaps = [after.ready_at - before.ended_at for before, after in pairwise(rows) if after.ready_at and before.ended_at]
    first = [one.ready_at - one.created_at for one in rows[:1] if one.ready_at]
    return len(rows), statistics.median(gaps or first or [0.0])


def _ask(address: str, client: Client, number: int, until: float) -> None:
    from app.access.server_token import server_token

    headers = {"Authorization": f"Bearer {server_token(get_settings())}"}
    with httpx.Client(base_url=address, headers=headers, timeout=600) as http:
        while time.monotonic() < until:
            body = {
                "model": client.model, "messages": [{"role": "user", "content": "Two mugs to Oslo."}], "user": str(number),
                "max_tokens": MAX_TOKENS, "temperature": 0, "stream": len(client.seconds) % 2 == 1,
            }  # fmt: skip
            began = time.monotonic()
            try:
                if problem := _answer(http, body, client):
                    client.lost.append(problem)
                    continue
            except httpx.HTTPError as error:
                client.lost.append(repr(error))
                continue
            client.seconds.append(time.monotonic() - began)


def _answer(http: httpx.Client, body: dict[str, Any], client: Client) -> str:
    """Asks until there is an answer. Returns what is wrong with it, or ""."""
    while (answer := http.post("/v1/chat/completions", json=body)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
        if "Retry-After" not in answer.headers:
            return answer.text[:300]
        client.told_to_wait += 1
        time.sleep(float(answer.headers["Retry-After"]))
    if not answer.is_success:
        return answer.text[:300]
    client.answering.append(answer.elapsed.total_seconds() - float(answer.headers["X-Lathe-Queue-Seconds"]))
    if body["stream"]:
        return "" if answer.text.endswith("data: [DONE]\n\n") and '"error"' not in answer.text else answer.text[-300:]
    return "" if answer.json()["choices"][0]["finish_reason"] else answer.text[:300]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
