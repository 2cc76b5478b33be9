"""Builds the training command of each machine of a run from its RunConfig."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from training.config.choices import Offload, Strategy
from training.config.run_config import RunConfig
from training.run_folder.paths import LEASED_GPUS_VARIABLE
from worker.machine import devices, programs


@dataclass(frozen=True)
class Launch:
    """A command (`argv`) and additions to its environment."""

    argv: list[str]
    env: dict[str, str]


@dataclass(frozen=True)
class Node:
    """One machine of a run: its number `rank` from 0, and the address and port of machine 0, at which all machines meet."""

    rank: int
    address: str
    port: int


def launch(config: RunConfig, run_dir: Path, leased: list[str], cpu_count: int = 1, node: Node | None = None) -> Launch:
    """The command that trains `config` in `run_dir` on the `leased` devices of one machine (`host/cuda:N`, or `host/cpu`).

    With several machines each runs the command of its `node`; `run_dir` is a folder that they share.
    """
    on_cpu = not any("/cuda:" in device for device in leased)
    env = environment(config, on_cpu=on_cpu, cpu_count=cpu_count) | devices.variables(leased)
    return Launch(command(config, run_dir, on_cpu=on_cpu, node=node), env)


def environment(config: RunConfig, *, on_cpu: bool, cpu_count: int = 1) -> dict[str, str]:
    """Additions to the environment of a machine's ranks."""
    env = {
        "PYTHONSAFEPATH": "1",
        "TOKENIZERS_PARALLELISM": "true",
        "HF_HUB_DISABLE_TELEMETRY": "1",  # send nothing about a run
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "OMP_NUM_THREADS": str(max(1, cpu_count // config.processes_per_machine)),
        LEASED_GPUS_VARIABLE: "0" if on_cpu else str(config.processes_per_machine),
    }
    if on_cpu:
        # DeepSpeed chooses its backend by this. ACCELERATE_USE_CPU stays unset: it would silently disable ZeRO.
        # A thread that spins while it waits takes the processor from the others where several programs share it.
        env |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_WAIT_POLICY": "PASSIVE"}
    return env


def command(config: RunConfig, run_dir: Path, *, on_cpu: bool, node: Node | None = None) -> list[str]:
    """The command of one machine of the run."""
    return [sys.executable, *_arguments(config, on_cpu=on_cpu, node=node), str(run_dir)]


def preview(config: RunConfig, *, on_cpu: bool = False) -> str:
    """The command to read and copy, one flag per line; with several machines that of each, with names to replace."""
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


def _arguments(config: RunConfig, *, on_cpu: bool, node: Node | None = None) -> list[str]:
    shared = [
        "--num_processes",
        str(config.num_processes),
        "--num_machines",
        str(config.num_machines),
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
    ]
    if config.strategy is Strategy.SINGLE:
        kind = ["--cpu"] if on_cpu else []
    elif config.strategy is Strategy.DDP:
        kind = ["--multi_gpu", *_meeting(config, node)]
    elif config.strategy is Strategy.FSDP:
        # Must be known before the ranks connect: offloaded parameters need gloo besides NCCL.
        offloads = str(config.offload_param is not Offload.NONE).lower()
        kind = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_offload_params", offloads, *_meeting(config, node)]
    else:
        kind = ["--use_deepspeed", *_meeting(config, node)]
    return ["-m", programs.LAUNCH.module, *kind, *shared, "--module", programs.TRAIN.module]


def _meeting(config: RunConfig, node: Node | None) -> list[str]:
    """Where the ranks meet: on one machine at any free port, on several at a TCP store of machine 0.

    The static rendezvous gives machine R the ranks from R * processes_per_machine on, so that rank 0 is beside the supervisor;
    the c10d one would number the machines in the order of their addresses.
    """
    if config.num_machines == 1:
        return ["--main_process_port", "0"]
    rank, address, port = (str(node.rank), node.address, str(node.port)) if node else ("RANK", "ADDRESS", "PORT")
    meeting = ["--machine_rank", rank, "--main_process_ip", address, "--main_process_port", port]
    meeting += ["--rdzv_backend", "static", "--same_network"]
    if config.strategy.zero_stage is not None:
        meeting += ["--deepspeed_multinode_launcher", "standard"]  # torchrun; accelerate's default is pdsh, over ssh
    return meeting
