"""Builds the training command from a RunConfig. Pure."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from training.config.choices import Offload, Strategy
from training.config.run_config import RunConfig


@dataclass(frozen=True)
class Launch:
    """A command (`argv`) and additions to its environment."""

    argv: list[str]
    env: dict[str, str]


def launch(config: RunConfig, run_dir: Path, devices: list[str], cpu_count: int = 1) -> Launch:
    """The command that trains `config` in `run_dir` on leased `devices` (`host/cuda:N`, or `host/cpu`)."""
    indices = [device.rsplit(":", 1)[1] for device in devices if "/cuda:" in device]
    env = {
        "PYTHONSAFEPATH": "1",
        "TOKENIZERS_PARALLELISM": "true",
        "HF_HUB_DISABLE_TELEMETRY": "1",  # send nothing about a run
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "OMP_NUM_THREADS": str(max(1, cpu_count // config.num_processes)),
    }
    if indices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(indices)
    else:
        # DeepSpeed chooses its backend by this. ACCELERATE_USE_CPU stays unset: it would silently disable ZeRO.
        # A thread that spins while it waits takes the processor from the others where several programs share it.
        env |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_WAIT_POLICY": "PASSIVE"}
    return Launch([sys.executable, *_arguments(config, on_cpu=not indices), str(run_dir)], env)


def preview(config: RunConfig, *, on_cpu: bool = False) -> str:
    """The command to read and copy, one flag per line."""
    arguments = _arguments(config, on_cpu=on_cpu)
    words = ["accelerate", "launch", *arguments[2:], "RUN_FOLDER"]
    lines, current = [], words[:2]
    for word in words[2:]:
        if word.startswith("--"):
            lines.append(shlex.join(current))
            current = []
        current.append(word)
    lines.append(shlex.join(current))
    return " \\\n  ".join(lines)


def _arguments(config: RunConfig, *, on_cpu: bool) -> list[str]:
    shared = [
        "--num_processes",
        str(config.num_processes),
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
    ]
    if config.strategy is Strategy.SINGLE:
        kind = ["--cpu"] if on_cpu else []
    elif config.strategy is Strategy.DDP:
        kind = ["--multi_gpu", "--main_process_port", "0"]
    elif config.strategy is Strategy.FSDP:
        # Must be known before the ranks connect: offloaded parameters need gloo besides NCCL.
        offloads = str(config.offload_param is not Offload.NONE).lower()
        kind = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_offload_params", offloads, "--main_process_port", "0"]
    else:
        kind = ["--use_deepspeed", "--main_process_port", "0"]
    return ["-m", "accelerate.commands.launch", *kind, *shared, "--module", "training.train"]
