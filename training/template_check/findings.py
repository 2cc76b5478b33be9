"""The faults that a check of rendered rows can find, and its report. Imports only what pages may import."""

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter

ERROR, WARNING = "error", "warning"


class Fault(StrEnum):
    """The names of the faults."""

    DOUBLED_BOS = "doubled_bos"
    END_MASKED = "end_token_masked"
    END_NEVER_WRITTEN = "end_token_never_written"
    PAD_IS_END = "pad_is_end_token"
    PROMPT_DIFFERS = "prompt_differs"
    ANSWER_TRIMMED = "answer_trimmed"
    SYSTEM_DROPPED = "system_dropped"
    EMPTY_THINKING = "empty_thinking"
    FEWER_IDS = "fewer_ids_than_head"
    UNTRAINED_TOKENS = "added_tokens_untrained"
    END_CUT_OFF = "end_token_cut_off"
    WRONG_ROLE = "wrong_role"
    CURRENT_DATE = "current_date"
    TOOLS_DROPPED = "tools_dropped"
    REASONING_DROPPED = "reasoning_dropped"
    ANSWER_MASKED = "answer_masked"
    COLUMNS_UNUSED = "columns_unused"
    BEYOND_POSITIONS = "beyond_positions"
    # Further ones, which prevent the check or make it pointless.
    CANNOT_RENDER = "cannot_render"
    MARKS_IGNORED = "marks_ignored"
    NO_LOSS = "no_loss"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True)
class Finding:
    """A fault: what is wrong, the first row with it (from 1; None if it concerns all), how many of the checked rows have it, the
    text of some of its tokens, and the fix with the setting and the changes that apply it."""

    fault: Fault
    severity: str
    message: str
    fix: str
    row: int | None = None
    rows: int = 1
    tokens: tuple[str, ...] = ()
    setting: str = "chat_template"
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The message with the row and the tokens, as one text."""
        place = f"Row {self.row:,}: " if self.row else ""
        shown = " ".join(f"[{token}]" for token in self.tokens).replace("\n", "⏎")
        more = f" The same in {self.rows - 1:,} more of the checked rows." if self.rows > 1 else ""
        return f"{place}{self.message}{f' Tokens: {shown}.' if shown else ''}{more}"


@dataclass(frozen=True)
class ShownToken:
    """A token for display. `weight` is its loss weight, 0 without loss; `cut`: beyond the maximum length."""

    id: int
    text: str
    weight: float
    cut: bool
    special: bool

    @property
    def trained(self) -> bool:
        return self.weight > 0


@dataclass(frozen=True)
class ShownRow:
    """A rendered row: its number from 1, the number of its tokens, and the first of them."""

    number: int
    length: int
    tokens: tuple[ShownToken, ...]


@dataclass(frozen=True)
class TemplateReport:
    """The faults, errors first, the number of rows checked token by token, and the first of them as tokens.

    `rendered` is the number of rows whose texts were looked for in their rendering; `complete` is False if time was too short for
    all.
    """

    findings: tuple[Finding, ...] = ()
    checked: int = 0
    rows: tuple[ShownRow, ...] = ()
    rendered: int = 0
    complete: bool = True

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == ERROR]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TemplateReport":
        return TypeAdapter(cls).validate_python(values)


def grouped(findings: list[Finding]) -> tuple[Finding, ...]:
    """One finding for each fault and fix, the first, with the number of its rows; errors first."""
    by_kind: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        by_kind.setdefault((finding.fault, finding.severity, finding.fix), []).append(finding)
    merged = [replace(same[0], rows=sum(finding.rows for finding in same)) for same in by_kind.values()]
    return tuple(sorted(merged, key=lambda finding: finding.severity != ERROR))
