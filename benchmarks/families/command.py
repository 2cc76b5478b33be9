"""Tries every language model class of the installed transformers, and writes docs/families.md.

`python -m benchmarks.families [--only NAME ...] [--kind KIND ...] [--sample N --seed S] [--json] [--write]`

Each class is built with few narrow layers: on torch's meta device its parameters and those of a LoRA are compared with what
Lathe counts, and a random model on CPU computes the loss of the same rows concatenated, padded and one by one. All classes take
one to two minutes of one core. `--write` also writes training/model_info/families.json, from which Lathe knows before a run which
families are padded.

Exits with 1 if a count or a loss is wrong.
"""

import argparse
import json
import os
import random
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.families.inputs import families
from benchmarks.families.measure import Row, measured
from training.model_info.families import CATALOGUE

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "families.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.families", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these model types")
    parser.add_argument("--kind", nargs="+", default=[], choices=["causal", "seq2seq", "classification"])
    parser.add_argument("--sample", type=int, metavar="N", help="only N classes, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--write", action="store_true", help="write docs/families.md and training/model_info/families.json"
    )
    options = parser.parse_args()
    rows = list(measure(options.only, options.kind, options.sample, options.seed))
    if options.write:
        DOCUMENT.write_text(document(rows), encoding="utf-8")
        CATALOGUE.write_text(json.dumps(catalogue(rows), indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.json else summary(rows))
    sys.exit(any(wrong(row) for row in rows))


def measure(only: list[str], kinds: list[str], sample: int | None, seed: int) -> Iterator[Row]:
    """Yields what holds for each chosen class."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    chosen = [family for family in families(*kinds) if not only or family.model_type in only]
    if sample:
        chosen = random.Random(seed).sample(chosen, min(sample, len(chosen)))
    for number, family in enumerate(chosen):
        row = measured(family)
        print(
            f"{number + 1}/{len(chosen)} {family.kind} {family.model_type}: {_words(row)}", file=sys.stderr, flush=True
        )
        yield row


def wrong(row: Row) -> bool:
    """True if a count of a class that can be built is not exact, or its flat batches have another loss than single rows."""
    if row.problem:
        return False
    return not row.exact or (row.losses is not None and row.losses[0] is not None and not row.equal)


def _words(row: Row) -> str:
    if row.problem:
        return f"cannot say: {row.problem}"
    counts = (
        ""
        if row.exact
        else f"WRONG {row.counted:,} of {row.parameters:,}, adapter {row.adapter_counted:,} of {row.adapter:,}; "
    )
    return f"{counts}{', '.join(row.mixers)}; {row.flat or 'flat'} {row.losses or ''}"


def catalogue(rows: list[Row]) -> dict[str, str]:
    """Returns why rows are padded, by model type of the causal classes; classes that could not be tried are left out."""
    tried = [row for row in rows if row.family.kind == "causal" and (row.losses or row.flat) and not row.problem]
    return {row.family.model_type: row.flat for row in tried if not row.flat.startswith("cannot be tried")}


def summary(rows: list[Row]) -> str:
    """Returns the numbers of classes by outcome."""
    built = [row for row in rows if not row.problem]
    causal = [row for row in built if row.family.kind == "causal"]
    exact, flat = sum(row.exact for row in built), sum(not row.flat and bool(row.losses) for row in causal)
    padded = sum(bool(row.flat) for row in causal)
    lines = [
        f"{len(rows)} classes: {exact} counted exactly, {len(built) - exact} wrongly; {len(rows) - len(built)} cannot be built "
        "with default settings (cannot say).",
        f"{len(causal)} causal language models: rows of {flat} are concatenated without padding, with the loss of padded and "
        f"single rows; those of {padded} are padded.",
    ]
    return "\n".join(lines)


INTRODUCTION = """\
# Model families

`python -m benchmarks.families --write` writes this page from the installed transformers. It builds every class for causal and
sequence-to-sequence language modeling and for sequence classification.

**Counted by**: *class* means that Lathe builds the class without weights, in a process of its own, and reads parameters, layers,
heads and linear modules from it; *formula* means that it needs only config.json, and agrees with the class. **Layers** says how
tokens are mixed. *Experts* are stored as 3-D tensors, which are no linear modules: LoRA on named target modules passes them by, and
with `all-linear` PEFT adapts those of some families as whole tensors; Lathe's count is PEFT's. **Forecast**: *simulated* means that
the formula does not know what the layers save, so that Lathe simulates a step. **Without padding** says whether rows are
concatenated; then their loss equals that of padded and of single rows. Otherwise Lathe pads them, refuses `packing: packed`, and
the reason is given. Layers that carry a state from token to token would carry it from row to row.
"""


def document(rows: list[Row]) -> str:
    """Returns the page."""
    from transformers import __version__

    parts = [INTRODUCTION, f"With transformers {__version__}: {summary(rows)}\n"]
    for kind, title in (
        ("causal", "Causal language models"),
        ("seq2seq", "Encoder-decoders"),
        ("classification", "Classification"),
    ):
        lines = [_line(row) for row in rows if row.family.kind == kind]
        if not lines:
            continue
        if kind == "causal":
            head = "| model type | counted by | layers | forecast | without padding |\n| --- | --- | --- | --- | --- |"
        else:
            head = "| model type | counted by | layers | forecast |\n| --- | --- | --- | --- |"
        parts.append(f"## {title}\n\n{head}\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _line(row: Row) -> str:
    name = row.family.model_type
    if row.problem:
        cells = [name, "cannot say", row.problem.replace("|", "/"), "cannot say"]
        return _cells([*cells, "-"] if row.family.kind == "causal" else cells)
    layers = ", ".join(row.mixers) + (", experts" if row.experts else "")
    cells = [name, row.by, layers, "simulated" if row.unknown else "formula"]
    if row.family.kind != "causal":
        return _cells(cells)
    differs = "" if row.losses is None or row.equal else " (padded rows have another loss than single ones)"
    answer = f"no: {row.flat}" if row.flat else "yes" if row.losses else "not tried: too large a model"
    return _cells([*cells, answer + differs])


def _cells(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
