"""The real training program, ended by a signal at chosen file operations: `signalled_train.py MODEL DATA FOLDER CASES`.

CASES is JSON: {name: [signal, operation]}, for example {"a": ["SIGTERM", "os.rename .manifest.json.tmp"]}. Each trains in
FOLDER/name, in a process forked from this one, which has trained once: loading the libraries takes long. The exit codes are
printed as JSON.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from training import train
from training.config.run_config import RunConfig
from training.tokens import store

SETTINGS: dict[str, Any] = {
    "max_steps": 3,
    "save_steps": 1,
    "save_total_limit": 1,
    "eval_split": 0,
    "logging_steps": 1,
    "micro_batch_size": 2,
    "answer_rows": 0,
}


def main(model: str, data: str, folder: Path, cases: dict[str, tuple[str, str]]) -> None:
    torch.set_num_threads(1)  # a process with threads cannot be forked safely
    os.environ |= {
        store.VARIABLE: str(folder / "tokens"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    config = RunConfig.model_validate({"model": model, "data": data} | SETTINGS)
    warm_up(config, folder / "warm")
    codes = {}
    for name, (number, operation) in cases.items():
        child = os.fork()
        if child == 0:
            trained(config, folder / name, signal.Signals[number], operation)
        codes[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps(codes))


def warm_up(config: RunConfig, run_dir: Path) -> None:
    from accelerate.state import AcceleratorState

    from training.ranks.stopping import StopSignal
    from training.reports.report import Report

    prepare(config, run_dir)
    train.train(config, run_dir, Report(run_dir, rank=0), StopSignal())
    AcceleratorState._reset_state(reset_partial_state=True)


def trained(config: RunConfig, run_dir: Path, number: signal.Signals, operation: str) -> None:
    """Trains in this process, which ends with it."""
    prepare(config, run_dir)
    log = os.open(run_dir / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    waiting = [operation]

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if waiting and event.startswith(("open", "os.", "shutil.")):
            words = [str(word).removeprefix(f"{run_dir}/") for word in arguments[:2]]
            # The folder has the name of the operation.
            done = " ".join([event, *[word.replace(str(run_dir), "") for word in words]])
            if waiting[0] in done:
                waiting.clear()
                (run_dir / "signalled").touch()
                os.kill(os.getpid(), number)

    sys.addaudithook(look)
    sys.argv = ["train", str(run_dir)]
    try:
        train.main()
    finally:
        os._exit(1)


def prepare(config: RunConfig, run_dir: Path) -> None:
    run_dir.mkdir()
    (run_dir / "config.json").write_text(config.model_dump_json())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
