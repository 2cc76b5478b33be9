"""Checks of a machine before the first run: devices, driver, packages, memory, disk and services, each with a cure."""

from collections.abc import Iterator

from worker.doctor import device_checks, host_checks
from worker.doctor.finding import Check, Finding, State

CHECKS: tuple[Check, ...] = (
    host_checks.packages,
    device_checks.driver,
    device_checks.gpus,
    device_checks.kernel_log,
    device_checks.kernels,
    host_checks.processors,
    host_checks.optional_packages,
    host_checks.vllm,
    host_checks.samples,
    host_checks.compiler,
    host_checks.confinement,
    host_checks.memory,
    host_checks.shared_memory,
    host_checks.open_files,
    host_checks.disk,
    host_checks.services,
    host_checks.hub,
    host_checks.trackers,
)

AT_START: tuple[Check, ...] = (
    host_checks.packages,
    host_checks.processors,
    host_checks.optional_packages,
    host_checks.compiler,
    host_checks.confinement,
    host_checks.shared_memory,
    host_checks.open_files,
)
"""What stays as it is while a worker runs. It tries its GPUs by itself, and System shows devices, memory and disks live."""


def wrong_at_start() -> list[Finding]:
    """What a worker finds wrong when it starts."""
    return [finding for check in AT_START for finding in check() if finding.state is not State.OK]


def findings() -> Iterator[Finding]:
    """What each check finds, as soon as it is known; half a minute in all, mostly the import of torch."""
    for check in CHECKS:
        yield from check()
