"""`python -m benchmarks.forecast --random N --seed S`: the forecasts judged by their verdicts on random configurations.

Each configuration is run once without an effective limit and its peak measured. A verdict follows from it: a run limited to what is
said to be needed (formula or simulation, and the slack that the product adds) dies if its peak is higher ("fits" was false), and
one limited to 0.9 of it lives if its peak is not ("does not fit" was false). `--verify N` runs N of them again under a limit just
above and just below the peak, to prove that.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.forecast.forked_ranks import ForkedRanks
from benchmarks.forecast.random_cases import RandomCase, draw
from benchmarks.forecast.verdicts import Measured, Row, compare, measure, prepare, run_folder

REQUIRED = {"formula": (3.0, 10.0), "simulation": (1.0, 4.0)}
"""Median and 95th percentile of the error in percent."""
FALSE_FITS, FALSE_REFUSALS = 1.0, 5.0
_WORST = 10


def run(options: argparse.Namespace) -> None:
    """Draws, measures, compares and prints; exits with 1 if a requirement is missed, or a run or its simulation failed."""
    cases = [draw(options.seed, number, options.task) for number in range(options.random)]
    # DeepSpeed writes its warnings to standard output, which is for the answer.
    with tempfile.TemporaryDirectory(prefix="lathe-random-") as place, contextlib.redirect_stdout(sys.stderr):
        home = options.keep or Path(place)
        home.mkdir(parents=True, exist_ok=True)
        known = _read(options.truth)
        measure(cases, home, known, partial(_write, options.truth))
        for case in cases:
            prepare(case, home)
        rows = [compare(case, home, known[case.name]) for case in cases if known[case.name].peak]
        checked = verify([case for case in cases if known[case.name].peak][: options.verify], home, known)
    failed = {case.name: known[case.name].problem for case in cases if known[case.name].problem}
    failed |= {row["name"]: row["fault"] for row in rows if row["fault"]}
    document = {"seed": options.seed, "summary": summary(rows), "verified": checked, "failed": failed, "rows": rows}
    print(json.dumps(document, indent=1) if options.json else table(document))
    sys.exit(bool(failed) or not holds(document["summary"]))


def _read(file: Path | None) -> dict[str, Measured]:
    stored = json.loads(file.read_text()) if file and file.exists() else {}
    return {name: Measured(**values) for name, values in stored.items()}


def _write(file: Path | None, known: dict[str, Measured]) -> None:
    if file:
        file.write_text(json.dumps({name: asdict(measured) for name, measured in known.items()}, indent=1))


def verify(cases: list[RandomCase], home: Path, known: dict[str, Measured]) -> list[dict[str, Any]]:
    """Runs cases under a limit of 0.5% above and below their peak; `right` if the first lives and the second is out of memory."""
    found, memory = [], psutil.virtual_memory().total
    if not cases:
        return []
    with ForkedRanks(home / "verified.log") as ranks:
        for case in cases:
            outcomes = []
            for share in (1.005, 0.995):
                limit = {"memory_limit": known[case.name].peak * share / memory, "on_out_of_memory": "fail"}
                folder = run_folder(case, home).with_name(f"verified-{case.seed}-{case.number}-{share}")
                outcomes.append(ranks.run(replace(case, config=case.config | limit), folder))
            lives, dies = outcomes[0][0] == "worked", "OutOfMemory" in outcomes[1][1]
            found.append({"case": f"{case.seed}:{case.number}", "lives_above": lives, "dies_below": dies})
    return found


def summary(rows: list[Row]) -> dict[str, Any]:
    """By predictor: cases, median and 95th percentile of the error, shares of false verdicts, all in percent; and by group."""
    found: dict[str, Any] = {}
    for name in ("formula", "simulation", "accelerate", "deepspeed"):
        known = [row for row in rows if name in row["errors"]]
        if known:
            found[name] = _figures(known, name)
            groups: dict[str, list[Row]] = defaultdict(list)
            for row in known if name in REQUIRED else ():
                for group in (
                    row["family"],
                    *(str(row["config"][key]) for key in ("task", "method", "strategy", "precision")),
                ):
                    groups[group].append(row)
            found[name] |= (
                {"groups": {group: _figures(some, name) for group, some in sorted(groups.items())}} if groups else {}
            )
    return found


def _figures(rows: list[Row], name: str) -> dict[str, float]:
    errors = sorted(abs(row["errors"][name]) for row in rows)
    verdicts = [row["verdicts"][name] for row in rows]
    return {
        "cases": len(rows),
        "median": median(errors),
        "p95": errors[min(len(errors) - 1, int(0.95 * len(errors)))],
        "false_fits": 100 * verdicts.count("dies") / len(rows),
        "false_refusals": 100 * verdicts.count("lives") / len(rows),
    }


def holds(found: dict[str, Any]) -> bool:
    """True if formula and simulation meet what is required."""
    return all(
        name in found
        and found[name]["median"] <= middle
        and found[name]["p95"] <= most
        and found[name]["false_fits"] <= FALSE_FITS
        and found[name]["false_refusals"] <= FALSE_REFUSALS
        for name, (middle, most) in REQUIRED.items()
    )


def table(document: dict[str, Any]) -> str:
    """The figures as text: each predictor, the groups of formula and simulation, and the worst cases."""
    heads = f"{'':28}{'cases':>7}{'median':>9}{'p95':>9}{'false fits':>12}{'false no':>10}"
    lines = [heads, *(_line(name, figures) for name, figures in document["summary"].items()), ""]
    for name in REQUIRED:
        groups = document["summary"].get(name, {}).get("groups", {})
        lines += [f"{name} by group", *(_line(f"  {group}", figures) for group, figures in groups.items()), ""]
        ranked = sorted(
            (row for row in document["rows"] if name in row["errors"]), key=lambda row: -abs(row["errors"][name])
        )
        lines += [
            f"{name}: worst cases",
            *(f"  {row['errors'][name]:+6.1f}%  {row['name']}" for row in ranked[:_WORST]),
            "",
        ]
    checked = document["verified"]
    right = sum(one["lives_above"] and one["dies_below"] for one in checked)
    lines += [f"Run again under limits: {right} of {len(checked)} as their peak says."] if checked else []
    lines += [f"FAILED {name}: {reason}" for name, reason in document["failed"].items()]
    return "\n".join(lines)


def _line(name: str, figures: dict[str, Any]) -> str:
    return (
        f"{name:28}{figures['cases']:7}{figures['median']:8.1f}%{figures['p95']:8.1f}%"
        f"{figures['false_fits']:11.1f}%{figures['false_refusals']:9.1f}%"
    )
