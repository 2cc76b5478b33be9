"""The text of `lathe dataset check`: a verdict, the numbers with their units, and every problem with its fix."""

from typing import Any

from app.words import numbers
from app.words.datasets import issue_lines

_ROWS_NAMED = 5


def page(values: dict[str, Any], max_length: int) -> str:
    """The check as text; `values` are what --json prints."""
    verdict = "can train" if values["trainable"] else "cannot train"
    lines = [f"{values['file']} {verdict}.", numbers.pairs([pair for pair in _facts(values) if pair[1]])]
    if values["tokens"]["total"] is not None:
        lines += ["", f"At {max_length:,} tokens", numbers.pairs(_tokens(values))]
    if values["problems"]:
        lines += [
            "",
            "Problems" if not values["trainable"] else "Warnings",
            *(f"  {line}" for line in issue_lines(values["problems"])),
        ]
    if values["suggestion"]:
        lines += ["", f"A mapping that fits the first rows: --columns '{values['suggestion']}'"]
    return "\n".join(lines)


def _facts(values: dict[str, Any]) -> list[tuple[str, str]]:
    reason = f", because {values['reason']}" if values["reason"] else ""
    counts = values["counts"] if len(values["counts"]) > 1 else {}
    return [
        ("Format", f"{values['format']}{reason}"),
        ("Columns not used", ", ".join(values["unused"])),
        ("Rows", numbers.count(values["rows"])),
        ("Rows of each", ", ".join(f"{count:,} {name}" for name, count in counts.items())),
        ("Empty rows (skipped)", numbers.count(values["empty_rows"]) if values["empty_rows"] else ""),
    ]


def _tokens(values: dict[str, Any]) -> list[tuple[str, str]]:
    tokens, rows = values["tokens"], values["rows"]
    longest = zip(values["longest_rows"][:_ROWS_NAMED], values["longest_lengths"], strict=False)
    worst = values["worst_batches"][0] if values["worst_batches"] else None
    lines = [
        ("Tokens per row", f"median {tokens['median']:,}, 95% within {tokens['p95']:,}, longest {tokens['max']:,}"),
        ("Total tokens", numbers.count(tokens["total"])),
        ("Truncated rows", f"{values['truncated_rows']:,} of {rows:,}, losing {values['lost_tokens']:,} tokens"),
        ("Rows with no loss tokens", numbers.count(values["untrained_rows"])),
        ("Duplicate rows", f"{values['duplicate_rows']:,} exact, {values['near_duplicate_rows']:,} near"),
        ("Longest rows", ", ".join(f"{row:,} ({length:,} tokens)" for row, length in longest)),
        (
            "Padding",
            f"{numbers.percent(values['padding_waste'])} of each batch; with packing {numbers.percent(values['packing_waste'])}",
        ),
    ]
    if worst:
        rank = f", rank {worst['rank']}" if values["settings"]["num_processes"] > 1 else ""
        lines.append(("Longest batch", f"step {worst['step']:,}{rank}: {worst['tokens']:,} tokens"))
    if "leaked_rows" in values.get("validation", {}):
        lines.append(("Also in the validation file", numbers.plural(values["validation"]["leaked_rows"], "row")))
    return lines
