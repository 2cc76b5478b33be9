"""Judges the diagnosis: `python -m benchmarks.diagnosis [FOLDER ...] [--variants SEED]`.

Diagnoses the logs in tests/logs and those of each folder with an index.json, and prints for each set how many answers are right,
the macro F1 over the causes, and the answers that are not right. `--variants` then prints each right log again with the
prefixes and line breaks of `benchmarks/diagnosis/variants.py`, and counts how often the answer stays the same.
"""

import argparse
from collections import Counter
from pathlib import Path

from benchmarks.diagnosis.judged_logs import of_folder, of_tests
from benchmarks.diagnosis.score import Answer, answers, report
from benchmarks.diagnosis.variants import VARIANTS, varied
from worker.diagnosis.diagnosis import diagnose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--variants", type=int, metavar="SEED")
    options = parser.parse_args()
    sets = {"tests/logs": of_tests()} | {str(folder): of_folder(folder) for folder in options.folders}
    judged = {title: answers(logs) for title, logs in sets.items()}
    for title, of_set in judged.items():
        print(report(title, of_set))
    if options.variants is not None:
        right = [answer for of_set in judged.values() for answer in of_set if answer.right]
        print(stability(right, options.variants))


def stability(right: list[Answer], seed: int) -> str:
    """How often each variant of the logs has the same answer, and the answers that changed."""
    changed = [
        (name, answer, cause)
        for name in VARIANTS
        for answer in right
        if (cause := diagnose(varied(answer.log.text, name, seed)).cause) != answer.diagnosis.cause
    ]
    count = len(right) * len(VARIANTS)
    by_variant = Counter(name for name, _, _ in changed)
    lines = [f"  {name}: {answer.log.name} became {cause}" for name, answer, cause in changed]
    lines += [f"  {name}: {number} of {len(right)} changed" for name, number in by_variant.most_common()]
    same = f"{100 * (1 - len(changed) / max(count, 1)):.2f}% of {count} answers ({len(right)} logs, {len(VARIANTS)} variants)"
    return "\n".join([f"same answer: {same}, seed {seed}", *lines])


if __name__ == "__main__":
    main()
