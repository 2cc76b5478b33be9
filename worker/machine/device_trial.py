"""What torch computes on this machine's devices, tried by a program of its own: importing torch here would take seconds."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from training import limited
from worker.machine import devices, programs
from worker.machine.gpus import used_by_others
from worker.settings import ROOT, SettingsError

_SECONDS = 180.0
_OLDEST_DRIVERS = {"13": "580", "12": "525"}
"""The oldest driver by the major version of CUDA, from the release notes of NVIDIA's toolkit."""

_NEEDED = {"float32", "float16"}  # cards before Ampere have no bf16


@dataclass(frozen=True)
class Trial:
    """`problem`: why torch cannot use the GPUs, with the cure, or empty. `faulty`: the reason by the name of the device."""

    problem: str = ""
    faulty: Mapping[str, str] = field(default_factory=dict)


def idle_devices() -> list[str]:
    """This worker's devices whose memory nobody uses: runs go on while a worker restarts, and fill their GPUs.

    Raises:
        SettingsError: LATHE_DEVICES names a GPU that does not exist.
    """
    busy = {devices.lease_name(gpu) for gpu in devices.usable_gpus() if used_by_others(gpu)}
    return [device for device in devices.own_devices() if device not in busy]


def tried(leased: Sequence[str], *, links: bool = False) -> dict[str, Any]:
    """What the program training.ranks.device_check says about these devices; `links`: also how fast whole GPUs reach each other.

    Raises:
        OSError, ValueError, SubprocessError: it did not end well.
    """
    environment = limited.environment() | devices.variables(leased)
    several = (
        sum("/cuda:" in device for device in leased) if links and not any(_is_instance(one) for one in leased) else 1
    )
    command = [sys.executable, "-m", programs.DEVICE_CHECK.module, str(several)]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, timeout=_SECONDS, check=False, text=True
    )
    if ended.returncode:
        raise ValueError((ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1])
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def _is_instance(device: str) -> bool:
    """True for an instance of a GPU (MIG); NCCL does not connect instances."""
    return "." in device.rpartition(":")[2]


def trial() -> Trial:
    """Tries the idle GPUs of this worker; without any there is nothing to try."""
    try:
        own = [device for device in idle_devices() if "/cuda:" in device]
        if not own:
            return Trial()
        answer = tried(own)
    except SettingsError:
        return Trial()  # the worker says so all the time
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Trial(f"torch could not be tried on the GPUs: {error}")
    if answer["gpus"] < len(own):
        return Trial(f"torch {seen(answer, len(own))}. {cure(answer)}")
    named = zip(own, answer["devices"], strict=False)
    return Trial(faulty={name: words(device) for name, device in named if is_serious(device)})


def seen(answer: Mapping[str, Any], leased: int) -> str:
    """What torch sees of so many GPUs."""
    built = f"with CUDA {answer['cuda']}" if answer["cuda"] else "without CUDA"
    return f"{answer['torch']}, built {built}, sees {answer['gpus']} of {leased} GPUs"


def cure(answer: Mapping[str, Any]) -> str:
    """What to do if torch sees too few GPUs."""
    oldest = _OLDEST_DRIVERS.get(str(answer["cuda"] or "").partition(".")[0], "")
    newer = f" CUDA {answer['cuda']} needs a driver of {oldest} or newer." if oldest else ""
    return f"Install a torch that fits the driver, or a newer driver.{newer}"


def words(device: Mapping[str, Any]) -> str:
    """What goes wrong on a device, by precision; "" if nothing does."""
    return ", ".join(f"{precision}: {reason}" for precision, reason in device["problems"].items())


def is_serious(device: Mapping[str, Any]) -> bool:
    """True if not even fp32 and fp16 work."""
    return bool(_NEEDED & device["problems"].keys())
