"""Texts about the installation for the page System and `lathe system`, from the values of its document. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from app.format import numbers
from training.units import NONE, byte_size
from worker.disk.freeing import Freeable
from worker.disk.usage import Kind

KINDS = {
    Kind.CHECKPOINTS: ("Checkpoints", ""),
    Kind.RESULTS: ("Results", "Adapters, models, GGUF files and their archives. Deleting a run frees them."),
    Kind.RUN_FILES: ("Logs and other files of runs", ""),
    Kind.TOKENS: ("Token cache", "At most LATHE_TOKEN_CACHE_BYTES; the least recently used are deleted first."),
    Kind.DATASETS: ("Data sets", "Remove data sets on the page Data sets."),
    Kind.UPLOADS: ("Uploads", ""),
    Kind.LOGS: ("Database and logs", ""),
    Kind.MODELS: (
        "Model cache",
        "Hub models and compiled operators on the web server's machine. Other programs use it too.",
    ),
}
"""The name of each kind of files, and a note."""

FREEABLE = {
    Freeable.FINISHED_CHECKPOINTS: (
        "Checkpoints of finished runs",
        "These runs have a result, so nothing uses their checkpoints any more.",
    ),
    Freeable.TOKENS: (
        "Tokens that no queued or running run uses",
        "Lathe tokenizes a data set again when a run or a page needs it.",
    ),
    Freeable.UPLOADS: ("Uploads older than a day", "These files were uploaded but not imported."),
    Freeable.BUILDS: ("Merged models, GGUF files and adapters of checkpoints", "They can be built again."),
    Freeable.RESUMABLE_CHECKPOINTS: (
        "Checkpoints of failed and stopped runs",
        "Resume needs them: without its checkpoints, a run starts at step 0.",
    ),
    Freeable.UNKNOWN_RUNS: (
        "Folders of runs that are not in the database",
        "Check first that Lathe uses the right database: with another one, these runs may be complete.",
    ),
}
"""The name of each kind of files that can be freed, and what is lost."""

STATES = {
    "ready": "ready",
    "overloaded": "starts no runs",
    "draining": "draining",
    "stopped": "stopped",
    "lost": "no contact",
}
NO_WORKER = "No worker has reported. Start one with `lathe worker`, or everything on this machine with `lathe up`."


def summary(machines: Sequence[dict[str, Any]], queue: dict[str, Any]) -> list[str]:
    """The fleet in a few words each: machines, devices in use, and the queue."""
    machines = [machine for machine in machines if machine["state"] not in ("lost", "stopped")]
    devices = [device for machine in machines for device in machine["devices"]]
    used = sum(device["lease"] is not None for device in devices)
    return [
        numbers.plural(len(machines), "machine", "machines"),
        f"{used} of {numbers.plural(len(devices), 'device', 'devices')} in use",
        f"{queue['running']:,} running, {queue['waiting']:,} queued",
    ]


def models(devices: Sequence[dict[str, Any]]) -> str:
    """The models of devices: "8 x NVIDIA H100"."""
    labels = Counter(device["label"] for device in devices)
    return ", ".join(label if number == 1 else f"{number} x {label}" for label, number in labels.items())


def size(files: dict[str, Any]) -> str:
    """How much files hold: "1.5 GiB in 12 files"."""
    return f"{byte_size(files['bytes'])} in {numbers.plural(files['files'], 'file', 'files')}"


def losses(offers: Sequence[dict[str, Any]]) -> str:
    """What is lost if these kinds of files are freed, a line for each kind."""
    lines = [f"{label}, {size(offer)}: {lost}" for offer in offers for label, lost in [FREEABLE[offer["kind"]]]]
    return "\n".join([*lines, "Files of queued and running runs stay, also of those that are resumed meanwhile."])


def account_cells(account: dict[str, Any]) -> list[str]:
    """What an account uses of what it may use: devices, waiting runs and disk space."""
    pairs = [(account["devices"], account["max_devices"]), (account["waiting"], account["max_waiting"])]
    cells = [f"{use:,}" if limit is None else f"{use:,} of {limit:,}" for use, limit in pairs]
    use, limit = account["disk_bytes"], account["max_disk_bytes"]
    if limit is None:
        return [*cells, byte_size(use)]
    return [*cells, f"{NONE} of {byte_size(limit)}" if use is None else used_of(use, limit)]


def device_name(name: str) -> str:
    """A device without its host: "GPU 0" or "CPU"."""
    kind, _, index = name.rpartition("/")[2].partition(":")
    return f"GPU {index}" if kind == "cuda" else kind.upper()


def device_names(names: Sequence[str]) -> str:
    """Devices of a run without their host: "GPU 0-3", "GPU 0, 2", "CPU"."""
    indices = sorted(int(index) for name in names if (index := name.rpartition(":")[2]).isdigit())
    if not indices:
        return ", ".join(map(device_name, names))
    if len(indices) > 2 and indices[-1] - indices[0] == len(indices) - 1:
        return f"GPU {indices[0]}-{indices[-1]}"
    return f"GPU {', '.join(map(str, indices))}"


def used_of(used: float | None, total: float) -> str:
    """Memory in use: "61.2 of 80.0 GiB", in the unit of the total; only the total where the use is unknown."""
    whole = byte_size(total)
    number, _, unit = whole.partition(" ")
    factor = float(number) / total if total else 0.0
    return whole if used is None else f"{used * factor:.{0 if float(number) >= 100 else 1}f} of {number} {unit}"


def celsius(degrees: int | None) -> str:
    """A temperature."""
    return NONE if degrees is None else f"{degrees} °C"


def watts(power: float | None) -> str:
    """An electric power."""
    return NONE if power is None else f"{power:.0f} W"


def step_of(lease: dict[str, Any]) -> str:
    """The step of the run that holds a device: "120 of 400", or its phase before the number of steps is known."""
    if lease["total_steps"]:
        return f"{lease['step']:,} of {lease['total_steps']:,}"
    return str(lease["phase"] or NONE)


def limits(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The limits of the installation; docs/deploy.md lists their variables."""
    return [
        ("Data folder", values["data_dir"]),
        ("Largest upload", byte_size(values["upload_limit_bytes"])),
        ("Token cache", byte_size(values["token_cache_bytes"])),
        ("Requests at a time", numbers.count(values["connections"])),
        ("Lease of a run", numbers.duration(values["lease_seconds"])),
        ("Attempts before a run fails", numbers.count(values["max_attempts"])),
    ]


def retention(rules: dict[str, Any]) -> list[tuple[str, str]]:
    """The retention rules, each with its variable, and what they would delete."""
    keep, days, archived = rules["keep_checkpoints"], rules["checkpoint_days"], rules["archive_days"]
    cached = rules["store_cache_bytes"]
    newest = "the newest is kept" if keep == 1 else f"the newest {keep} are kept"
    kept = "all are kept" if keep is None else newest
    deleted = "never" if days is None else f"{days:g} days after the end"
    now = rules["would_delete"]
    return [
        ("Checkpoints of ended runs (LATHE_KEEP_CHECKPOINTS)", kept),
        ("Checkpoints of finished runs are deleted (LATHE_CHECKPOINT_DAYS)", deleted),
        (
            "Ended runs are archived unless pinned (LATHE_ARCHIVE_DAYS)",
            "never" if archived is None else f"{archived:g} days after the end",
        ),
        (
            "Files of finished runs that the object store has too (LATHE_STORE_CACHE_BYTES)",
            "all are kept" if cached is None else f"at most {byte_size(cached)}, without the least recently used",
        ),
        (
            "The rules would delete now",
            f"{byte_size(now['bytes'])} of {numbers.plural(now['runs'], 'run', 'runs')}" if now else NONE,
        ),
    ]


def finding_words(finding: dict[str, Any]) -> str:
    """What a worker found wrong with its machine, with the cure: "shared memory: 64 MiB free. In a container: ..."."""
    sentence = f"{finding['subject']}: {finding['said']}".rstrip(".")
    return f"{sentence}. {finding['cure']}".rstrip()
