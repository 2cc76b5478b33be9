"""Texts about the installation for the page System and `lathe system`, from the values of its document. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from app.format import numbers
from app.texts import _, gettext_noop, ngettext
from training.units import NONE, byte_size
from worker.choices import Freeable
from worker.disk.usage import FileKind

KINDS = {
    FileKind.CHECKPOINTS: (gettext_noop("Checkpoints"), ""),
    FileKind.RESULTS: (
        gettext_noop("Results"),
        gettext_noop("Adapters, models, GGUF files and their archives. Deleting a run frees them."),
    ),
    FileKind.RUN_FILES: (gettext_noop("Logs and other files of runs"), ""),
    FileKind.TOKENS: (
        gettext_noop("Token cache"),
        gettext_noop("At most LATHE_TOKEN_CACHE_BYTES; the least recently used are deleted first."),
    ),
    FileKind.DATASETS: (gettext_noop("Data sets"), gettext_noop("Remove data sets on the page Data sets.")),
    FileKind.UPLOADS: (gettext_noop("Uploads"), ""),
    FileKind.LOGS: (gettext_noop("Database, logs and caches"), ""),
    FileKind.MODELS: (
        gettext_noop("Model cache"),
        gettext_noop("Hub models and compiled operators on the web server's machine. Other programs use it too."),
    ),
}
"""The name of each kind of files, and a note."""

FREEABLE = {
    Freeable.FINISHED_CHECKPOINTS: (
        gettext_noop("Checkpoints of finished runs"),
        gettext_noop("These runs have a result, so nothing uses their checkpoints any more."),
    ),
    Freeable.TOKENS: (
        gettext_noop("Tokens that no queued or running run uses"),
        gettext_noop("Lathe tokenizes a data set again when a run or a page needs it."),
    ),
    Freeable.UPLOADS: (
        gettext_noop("Uploads older than a day"),
        gettext_noop("These files were uploaded but not imported."),
    ),
    Freeable.BUILDS: (
        gettext_noop("Merged models, GGUF files and adapters of checkpoints"),
        gettext_noop("They can be built again."),
    ),
    Freeable.RESUMABLE_CHECKPOINTS: (
        gettext_noop("Checkpoints of failed and stopped runs"),
        gettext_noop("Resume needs them: without its checkpoints, a run starts at step 0."),
    ),
    Freeable.UNKNOWN_RUNS: (
        gettext_noop("Folders of runs that are not in the database"),
        gettext_noop("Check first that Lathe uses the right database: with another one, these runs may be complete."),
    ),
}
"""The name of each kind of files that can be freed, and what is lost."""

STATES = {
    "ready": gettext_noop("ready"),
    "overloaded": gettext_noop("starts no runs"),
    "draining": gettext_noop("draining"),
    "stopped": gettext_noop("stopped"),
    "lost": gettext_noop("no contact"),
}
NO_WORKER = "No worker has reported. Start one with `lathe worker`, or everything on this machine with `lathe up`."


def summary(machines: Sequence[dict[str, Any]], queue: dict[str, Any]) -> list[str]:
    """The fleet in a few words each: machines, devices in use, and the queue."""
    machines = [machine for machine in machines if machine["state"] not in ("lost", "stopped")]
    devices = [device for machine in machines for device in machine["devices"]]
    used = sum(device["lease"] is not None for device in devices)
    return [
        numbers.plural(len(machines), "machine", "machines"),
        _("{used} of {devices} in use").format(used=used, devices=numbers.plural(len(devices), "device", "devices")),
        _("{running} running, {waiting} queued").format(
            running=numbers.count(queue["running"]), waiting=numbers.count(queue["waiting"])
        ),
    ]


def models(devices: Sequence[dict[str, Any]]) -> str:
    """The models of devices: "8 x NVIDIA H100"."""
    labels = Counter(device["label"] for device in devices)
    return ", ".join(label if number == 1 else f"{number} x {label}" for label, number in labels.items())


def size(files: dict[str, Any]) -> str:
    """How much files hold: "1.5 GiB in 12 files"."""
    return _("{size} in {files}").format(
        size=byte_size(files["bytes"]), files=numbers.plural(files["files"], "file", "files")
    )


def losses(offers: Sequence[dict[str, Any]]) -> str:
    """What is lost if these kinds of files are freed, a line for each kind."""
    lines = [f"{_(label)}, {size(offer)}: {_(lost)}" for offer in offers for label, lost in [FREEABLE[offer["kind"]]]]
    return "\n".join([*lines, _("Files of queued and running runs stay, also of those that are resumed meanwhile.")])


def account_cells(account: dict[str, Any]) -> list[str]:
    """What an account uses of what it may use: devices, waiting runs and disk space."""
    pairs = [(account["devices"], account["max_devices"]), (account["waiting"], account["max_waiting"])]
    cells = [f"{use:,}" if limit is None else _of(f"{use:,}", f"{limit:,}") for use, limit in pairs]
    use, limit = account["disk_bytes"], account["max_disk_bytes"]
    if limit is None:
        return [*cells, byte_size(use)]
    return [*cells, _of(NONE, byte_size(limit)) if use is None else used_of(use, limit)]


def device_name(name: str) -> str:
    """A device without its host: "GPU 0" or "CPU"."""
    kind, _colon, index = name.rpartition("/")[2].partition(":")
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
    number, _space, unit = whole.partition(" ")
    factor = float(number) / total if total else 0.0
    return whole if used is None else _of(f"{used * factor:.{0 if float(number) >= 100 else 1}f}", f"{number} {unit}")


def _of(part: str, whole: str) -> str:
    return _("{count} of {total}").format(count=part, total=whole)


def celsius(degrees: int | None) -> str:
    """A temperature."""
    return NONE if degrees is None else f"{degrees} °C"


def watts(power: float | None) -> str:
    """An electric power."""
    return NONE if power is None else f"{power:.0f} W"


def step_of(lease: dict[str, Any]) -> str:
    """The step of the run that holds a device: "120 of 400", or its phase before the number of steps is known."""
    if lease["total_steps"]:
        return _of(numbers.count(lease["step"]), numbers.count(lease["total_steps"]))
    return _(str(lease["phase"] or NONE))


def limits(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The limits of the installation; docs/deploy.md lists their variables."""
    return [
        (_("Data folder"), values["data_dir"]),
        (_("Largest upload"), byte_size(values["upload_limit_bytes"])),
        (_("Token cache"), byte_size(values["token_cache_bytes"])),
        (_("Requests at a time"), numbers.count(values["connections"])),
        (_("Lease of a run"), numbers.duration(values["lease_seconds"])),
        (_("Attempts before a run fails"), numbers.count(values["max_attempts"])),
    ]


def retention(rules: dict[str, Any]) -> list[tuple[str, str]]:
    """The retention rules, each with its variable, and what they would delete."""
    keep, days, archived = rules["keep_checkpoints"], rules["checkpoint_days"], rules["archive_days"]
    cached = rules["store_cache_bytes"]
    kept = _("all are kept")
    if keep is not None:
        kept = ngettext("the newest is kept", "the newest {count} are kept", keep).format(count=keep)
    now = rules["would_delete"]
    return [
        (_("Checkpoints of ended runs (LATHE_KEEP_CHECKPOINTS)"), kept),
        (_("Checkpoints of finished runs are deleted (LATHE_CHECKPOINT_DAYS)"), _after(days)),
        (
            _("Ended runs are archived unless pinned (LATHE_ARCHIVE_DAYS)"),
            _after(archived),
        ),
        (
            _("Files of finished runs that the object store has too (LATHE_STORE_CACHE_BYTES)"),
            _("all are kept")
            if cached is None
            else _("at most {size}, without the least recently used").format(size=byte_size(cached)),
        ),
        (
            _("The rules would delete now"),
            _of(byte_size(now["bytes"]), numbers.plural(now["runs"], "run", "runs")) if now else NONE,
        ),
    ]


def _after(days: float | None) -> str:
    return _("never") if days is None else _("{days} days after the end").format(days=f"{days:g}")


def finding_words(finding: dict[str, Any]) -> str:
    """What a worker found wrong with its machine, with the cure: "shared memory: 64 MiB free. In a container: ..."."""
    sentence = f"{finding['subject']}: {finding['said']}".rstrip(".")
    return f"{sentence}. {finding['cure']}".rstrip()
