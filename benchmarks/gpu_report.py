"""The findings of benchmarks/gpu.py as docs/gpu.md."""

from typing import Any

NOT_ON_CUDA = "**Nothing on this page was run on CUDA.**"
GIB = 2**30
_MANY = 20  # checks that are not listed one by one
TITLES = {
    "numbers": ("Numbers", "Losses of the training program on this device against fp32 on CPU; a run that is killed and goes on; "
                "an adapter that is saved and read back."),
    "kernels": ("Attention kernels", "The same model with each kernel, on rows of equal length, padded rows, and rows laid end to "
                "end, against fp32 on CPU: relative norms of the differences."),
    "quantized": ("QLoRA", "Weights in 4 bits (NF4) and in 8 bits by bitsandbytes beside LoRA in bf16."),
    "probe": ("The probe", "The peak that two steps on the largest batch find before a run, against the peak of the same run "
              "without them."),
    "out_of_memory": ("Out of memory", "A run under a limit that it does not fit, and on a GPU one whose batch is larger than the "
                      "card: each attempt takes the settings that the record of the one before proposes."),
    "memory": ("Memory foretold and taken", "Steps of the real trainer on random weights. Forecast and simulation are compared "
               "with what torch had allocated, the forecast with context and slack with what NVML says."),
    "throughput": ("Throughput", "The same rows, first weights and loss mask, one process after another, medians."),
}  # fmt: skip
PACKAGES = """\
## What the command needs

Python 3.11 or later, torch 2.11 or later, transformers 5.17 or later, peft, accelerate, safetensors, numpy, pydantic, psutil and
PyYAML. It takes nothing of the web server, the queue or the database: gradio, celery, sqlmodel, redis and fastapi need not be
installed. bitsandbytes is needed for QLoRA and the 8-bit optimizer, trl and datasets for the comparison with trl, nvidia-ml-py for
NVML, flash-attn for its kernels; what is not installed is skipped and named above. Nothing is downloaded.
"""


def passed(found: dict[str, Any]) -> bool:
    """Whether every part came to its end and every check holds."""
    parts = found["parts"].values()
    return all(part["status"] == "measured" and all(check["passed"] for check in part["checks"]) for part in parts)


def document(found: dict[str, Any]) -> str:
    """docs/gpu.md: what it was run on, then a section for each part."""
    lines = ["# What a GPU shows", "", *_heading(found)]
    if missing := [name for name in TITLES if name not in found["parts"]]:
        lines += [f"Parts that were not run: {', '.join(missing)}.", ""]
    for name, part in found["parts"].items():
        lines += _section(name, part, timed=found["machine"]["device"] == "cuda")
    return "\n".join([*lines, PACKAGES])


def _heading(found: dict[str, Any]) -> list[str]:
    machine = dict(found["machine"])
    device = machine.pop("device")
    versions = ", ".join(f"{name} {value}" for name, value in machine.items())
    command = "`python -m benchmarks.gpu --write` makes this page"
    if device == "cpu":
        return [
            f"{NOT_ON_CUDA} {command}; it was last run on a CPU,",
            "with small models, so that what follows shows that the command works and says nothing of a GPU. On a machine with",
            "a GPU the same command takes eight minutes at most.",
            "",
            f"Run with {versions}.",
            "",
        ]
    small = " with the small models that are meant for a CPU" if found["small"] else ""
    return [f"{command}. Run on CUDA{small}: {versions}.", ""]


def _section(name: str, part: dict[str, Any], *, timed: bool) -> list[str]:
    title, shows = TITLES[name]
    failed = [check for check in part["checks"] if not check["passed"]]
    lines = [f"## {title}", "", shows, ""]
    seconds = f", {part['seconds']:.0f} s" if timed else ""
    lines += [f"`--part {name}`: {len(part['checks'])} checks, {len(failed)} failed{seconds}.", ""]
    if part.get("error"):
        reason = part["error"].strip().splitlines()
        lines += [
            f"**This part did not come to its end**: {reason[0]} {reason[-1] if len(reason) > 1 else ''}".strip(),
            "",
        ]
    for rows_title, rows in part["tables"].items():
        lines += [f"### {rows_title}", "", *_table(rows), ""]
    lines += [line for note in part["notes"] for line in (note, "")]
    if part["checks"]:
        lines += [*_checks(part["checks"]), ""]
    if part["skipped"]:
        lines += ["Skipped:", "", *(f"- {reason}" for reason in part["skipped"]), ""]
    return lines


def _checks(checks: list[dict[str, Any]]) -> list[str]:
    """A table of the checks; of many that all hold, the one that is closest to its limit."""
    limited = [check for check in checks if check["limit"]]
    if len(checks) > _MANY and limited and all(check["passed"] for check in checks):
        closest = max(limited, key=lambda check: check["value"] / check["limit"])
        values = f"{_number(closest['value'])}, the limit is {_number(closest['limit'])}"
        return [f"All {len(checks)} checks hold; closest to its limit is {closest['what']}: {values}."]
    rows = [
        {
            "check": check["what"],
            "measured": check["value"] if check["limit"] is None else _number(check["value"]),
            "limit": "" if check["limit"] is None else _number(check["limit"]),
            "holds": "yes" if check["passed"] else "**NO**",
        }
        for check in checks
    ]
    return _table(rows)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows of like keys as a Markdown table; a column's name says its unit."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    heads = [_head(name) for name in names]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(names)}"]
    return lines + [f"| {' | '.join(_cell(name, row.get(name)) for name in names)} |" for row in rows]


def _head(name: str) -> str:
    if name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes').replace('_', ' ')}, GiB"
    return name.replace("_percent", ", %").replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if value is None or value == "":
        return ""
    if name.endswith("_bytes"):
        return f"{value / GIB:,.2f}" if value >= GIB else f"{value / GIB:.4f}"
    if name.endswith("_percent"):
        return f"{round(value, 1) + 0.0:+.1f}"  # no minus before a zero
    return (
        _number(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else _escaped(str(value))
    )


def _number(value: float | None) -> str:
    """A number with four figures; NaN and infinity came as none."""
    if value is None:
        return "not a number"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
