"""Formats the findings of benchmarks/gpu/command.py as docs/gpu.md."""

from typing import Any

MARK = "<!-- python -m benchmarks.gpu --write replaces what follows -->"
NOT_ON_CUDA = "**Nothing on this page was run on CUDA.**"
GIB = 2**30
_MANY = 20  # more checks than this are summarized
TITLES = {
    "numbers": ("Numbers", "Losses on this device compared with fp32 on CPU; a run that is killed and resumed; "
                "an adapter that is saved and loaded."),
    "kernels": ("Attention kernels", "The same model with each kernel, on rows of equal length, padded rows and concatenated (flat)"
                " rows, compared with fp32 on CPU: relative norms of the differences."),
    "quantized": ("QLoRA", "Base weights quantized to 4 bits (NF4) and 8 bits with bitsandbytes, compared with LoRA in bf16."),
    "probe": ("The probe", "The peak memory that the probe measures in two steps on the largest batch, compared with the peak of "
              "the same run without a probe."),
    "out_of_memory": ("Out of memory", "A run that exceeds its memory limit, and on a GPU a run whose batch does not fit. Each"
                      " attempt uses the settings that the previous out-of-memory report proposes."),
    "memory": ("Forecast and measured memory", "Steps of the trainer with random weights. Forecast and simulation are compared with"
               " the memory that torch allocated; the forecast with context and slack is compared with NVML."),
    "throughput": ("Throughput", "Same rows, initial weights and loss mask; one process after another; medians."),
}  # fmt: skip
PACKAGES = """\
### What the command needs

Python 3.11 or later, torch 2.11 or later, transformers 5.17 or later, peft, accelerate, safetensors, numpy, pydantic, psutil and
PyYAML. The packages of the web server, the queue and the database (gradio, celery, sqlmodel, redis, fastapi) are not
needed. QLoRA and the 8-bit optimizer need bitsandbytes, the comparison with trl needs trl and datasets, NVML needs nvidia-ml-py,
and flash attention needs flash-attn. The command skips parts whose packages are missing and lists them above. It downloads nothing.
"""


def passed(findings: dict[str, Any]) -> bool:
    """True if every part finished and every check holds."""
    parts = findings["parts"].values()
    return all(part["status"] == "measured" and all(check["passed"] for check in part["checks"]) for part in parts)


def document(findings: dict[str, Any]) -> str:
    """Returns docs/gpu.md: the machine, then a section for each part."""
    lines = ["## Measurements", "", *_heading(findings)]
    if missing := [name for name in TITLES if name not in findings["parts"]]:
        lines += [f"Parts that were not run: {', '.join(missing)}.", ""]
    for name, part in findings["parts"].items():
        lines += _section(name, part, timed=findings["machine"]["device"] == "cuda")
    return "\n".join([*lines, PACKAGES])


def _heading(findings: dict[str, Any]) -> list[str]:
    machine = dict(findings["machine"])
    device = machine.pop("device")
    versions = ", ".join(f"{name} {value}" for name, value in machine.items())
    command = "`python -m benchmarks.gpu --write` writes this page"
    if device == "cpu":
        return [
            f"{NOT_ON_CUDA} {command}; it was last run on a CPU,",
            "with small models. The figures show that the command works; they say nothing about a GPU. On a machine with",
            "a GPU the same command takes about sixteen minutes.",
            "",
            f"Run with {versions}.",
            "",
        ]
    small = " with the small models for a CPU" if findings["small"] else ""
    return [f"{command}. Run on CUDA{small}: {versions}.", ""]


def _section(name: str, part: dict[str, Any], *, timed: bool) -> list[str]:
    title, shows = TITLES[name]
    failed = [check for check in part["checks"] if not check["passed"]]
    lines = [f"### {title}", "", shows, ""]
    seconds = f", {part['seconds']:.0f} s" if timed else ""
    lines += [f"`--part {name}`: {len(part['checks'])} checks, {len(failed)} failed{seconds}.", ""]
    if part.get("error"):
        reason = part["error"].strip().splitlines()
        lines += [
            f"**This part did not finish**: {reason[0]} {reason[-1] if len(reason) > 1 else ''}".strip(),
            "",
        ]
    for rows_title, rows in part["tables"].items():
        lines += [f"#### {rows_title}", "", *_table(rows), ""]
    lines += [line for note in part["notes"] for line in (note, "")]
    if part["checks"]:
        lines += [*_checks(part["checks"]), ""]
    if part["skipped"]:
        lines += ["Skipped:", "", *(f"- {reason}" for reason in part["skipped"]), ""]
    return lines


def _checks(checks: list[dict[str, Any]]) -> list[str]:
    """Returns a table of the checks; of many that all hold, only the one closest to its limit."""
    limited = [check for check in checks if check["limit"]]
    if len(checks) > _MANY and limited and all(check["passed"] for check in checks):
        closest = max(limited, key=lambda check: check["value"] / check["limit"])
        values = f"{_number(closest['value'])}, the limit is {_number(closest['limit'])}"
        return [f"All {len(checks)} checks hold; the closest to its limit is {closest['what']}: {values}."]
    rows = [
        {
            "check": check["what"],
            "measured": check["value"] if check["limit"] is None else _number(check["value"]),
            "limit": "" if check["limit"] is None else _number(check["limit"]),
            "passed": "yes" if check["passed"] else "**NO**",
        }
        for check in checks
    ]
    return _table(rows)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns rows with the same keys as a Markdown table; a column's name gives its unit."""
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
        return f"{round(value, 1) + 0.0:+.1f}"  # avoids -0.0
    return (
        _number(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else _escaped(str(value))
    )


def _number(value: float | None) -> str:
    """Formats a number with four digits; None stands for NaN and infinity."""
    if value is None:
        return "not a number"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
