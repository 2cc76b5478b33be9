"""Prints a log as other programs would: with the prefixes of launchers and collectors, and wrapped by a terminal."""

import random
from collections.abc import Callable

Variant = Callable[[list[str], random.Random], list[str]]


def _prefixed(template: str) -> Variant:
    """A prefix before each line: {ms} counts up, {rank}, {pid} and {ip} are one process's."""

    def variant(lines: list[str], draw: random.Random) -> list[str]:
        process = {"rank": draw.randrange(8), "pid": draw.randrange(100, 99999), "ip": f"10.0.0.{draw.randrange(255)}"}
        return [
            template.format(ms=f"{number % 1000:03d}", s=f"{number // 50 % 60:02d}", **process) + line
            for number, line in enumerate(lines)
        ]

    return variant


def _wrapped(width: int, template: str = "") -> Variant:
    """Broken in the middle of words by a terminal of this width; the prefix counts as a part of the line."""

    def variant(lines: list[str], draw: random.Random) -> list[str]:
        whole = _prefixed(template)(lines, draw) if template else lines
        return [line[start : start + width] for line in whole for start in range(0, max(len(line), 1), width)]

    return variant


def _colored(lines: list[str], draw: random.Random) -> list[str]:
    return [f"\x1b[{draw.choice(('31', '1;31', '38;5;9'))}m{line}\x1b[0m" for line in lines]


def _carriage_returns(lines: list[str], _: random.Random) -> list[str]:
    return [line + "\r" for line in lines]


def _fenced(lines: list[str], _: random.Random) -> list[str]:
    return ["```", *lines, "```"]


def _after_a_bar(lines: list[str], _: random.Random) -> list[str]:
    bars = [f"{n}%|{'█' * (n // 10)}{' ' * (10 - n // 10)}| {n}/100 [00:01<00:02,  1.37it/s]" for n in range(0, 50, 7)]
    return ["\r".join(["", *bars]), *lines]


VARIANTS: dict[str, Variant] = {
    "torch": _prefixed("[rank{rank}]: "),
    "torchrun --tee": _prefixed("[default{rank}]:"),
    "torchrun --tee, torch": _prefixed("[default{rank}]:[rank{rank}]: "),
    "lightning": _prefixed("[rank: {rank}] "),
    "mpirun": _prefixed("[1,{rank}]<stderr>:"),
    "srun --label": _prefixed("{rank}: "),
    "deepspeed host": _prefixed("node-7: "),
    "ray": _prefixed("(TrainWorker pid={pid}) "),
    "ray, ip": _prefixed("(RayTrainWorker pid={pid}, ip={ip}) "),
    "ray, colored": _prefixed("\x1b[36m(WorkerDict pid={pid})\x1b[0m "),
    "ray, repeated": _prefixed("(TrainWorker pid={pid}) [repeated 3x across cluster] "),
    "vllm": _prefixed("(EngineCore_DP0 pid={pid}) ERROR 11-19 12:16:{s} [core.py:842] "),
    "gke": _prefixed("INFO 2025-11-19T20:16:{s}.{ms}625454Z [resource.labels.containerName: main] "),
    "kubectl --prefix": _prefixed("[pod/train-0/main] "),
    "kubectl --timestamps": _prefixed("2026-01-02T10:00:{s}.{ms}123456Z "),
    "containerd": _prefixed("2026-01-02T10:00:{s}.{ms}123456Z stderr F "),
    "docker compose": _prefixed("trainer-1  | "),
    "journald": _prefixed("Jan  2 10:00:{s} node1 python[{pid}]: "),
    "logging": _prefixed("2026-01-02 10:00:{s},{ms} - trainer - ERROR - "),
    "logging, level first": _prefixed("ERROR:root:"),
    "loguru": _prefixed("2026-01-02 10:00:{s}.{ms} | ERROR    | train:main:87 - "),
    "deepspeed logger": _prefixed("[2026-01-02 10:00:{s},{ms}] [ERROR] [engine.py:1988:step] "),
    "github actions": _prefixed("2026-01-02T10:00:{s}.{ms}1234Z "),
    "sagemaker": _prefixed("[1,mpirank:{rank},algo-1]<stderr>:"),
    "quoted": _prefixed("> "),
    "indented": _prefixed("    "),
    "colored": _colored,
    "carriage returns": _carriage_returns,
    "wrapped at 120": _wrapped(120),
    "ray, wrapped at 160": _wrapped(160, "(TrainWorker pid={pid}) "),
    "after a bar": _after_a_bar,
    "fenced": _fenced,
}


def varied(text: str, name: str, seed: int) -> str:
    """The log as the variant prints it; the same seed gives the same text."""
    lines = text.rstrip("\n").split("\n")
    return "\n".join(VARIANTS[name](lines, random.Random(f"{seed} {name}"))) + "\n"
