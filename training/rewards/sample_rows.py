"""`python -m training.rewards.sample_rows`: prints rows of a data file as the samples that rewards score, without their answers.

Standard input has {"path", "columns", "first": N, "rows": [numbers] or null}. Each row is {"number" from 0, "prompt", "expected",
"row"}, the prompt as `prompt_text` writes it. Empty rows are left out.
"""

import json
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from training.data.example import Example, Row, answer_text, asked, prompt_text
from training.data.rows import read_numbered
from training.errors import DataError, UserError, answer_json

MOST_CHARACTERS = 8 * 2**20
"""Of all samples together, as JSON: who asked for them keeps them in its memory."""


def samples(text: str) -> dict[str, Any]:
    """The rows that a request names.

    Raises:
        UserError: a row cannot be read.
    """
    request = json.loads(text)
    wanted = None if request["rows"] is None else set(request["rows"])
    found: list[dict[str, Any]] = []
    left = MOST_CHARACTERS
    for number, row, example in islice(wanted_rows(request, wanted), request["first"] if wanted is None else None):
        prompt, expected = texts(example)
        sample = json.dumps({"number": number, "prompt": prompt, "expected": expected, "row": row}, default=str)
        left -= len(sample)
        if left < 0:
            message = f"has more than {MOST_CHARACTERS:,} characters in its first {len(found) + 1:,} of these rows."
            raise UserError("data", request["name"], message, "Score fewer rows, or evaluate a run on the data set.")
        found.append(json.loads(sample))
    return {"samples": found}


def wanted_rows(request: dict[str, Any], wanted: Collection[int] | None) -> Iterator[tuple[int, Row, Example]]:
    """Yields the number, the row and the example of each row that a request's file has of the wanted numbers (None: of all), apart
    from empty ones; reads no row after the last. Raises UserError if a row cannot be read."""
    try:
        rows = read_numbered(Path(request["path"]), request["columns"])
        for number, row, example in islice(rows, None if wanted is None else max(wanted, default=-1) + 1):
            if example is not None and (wanted is None or number in wanted):
                yield number, row, example
    except DataError as error:
        place = f"row {error.line} " if error.line else ""
        raise UserError("data", request["name"], f"{place}{error.message}", error.fix) from None


def texts(example: Example) -> tuple[str, str]:
    """The prompt and the expected answer of an example, as rewards see them."""
    if example.messages is None:
        return prompt_text(example), example.answer
    before = asked(example)
    expected = answer_text(example.messages[len(before)]) if len(before) < len(example.messages) else ""
    return prompt_text(example), expected


if __name__ == "__main__":
    answer_json(samples)
