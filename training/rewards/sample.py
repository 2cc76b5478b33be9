"""A sample: what rewards score."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sample:
    """An answer to score. `row` has all columns of the data row; `number` is the row's index in its file, None if unknown."""

    prompt: str
    answer: str
    expected: str
    row: dict[str, Any] = field(default_factory=dict)
    number: int | None = None

    def place(self, index: int) -> str:
        """The sample in messages: its row, or else its place in the batch."""
        return f"sample {index + 1:,}" if self.number is None else f"row {self.number + 1:,}"
