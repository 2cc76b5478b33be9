"""The faults of rows whose texts are missing in their rendering, or whose answers carry no loss."""

import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

from training.template_check.findings import Fault, Finding
from training.tokens.coverage import Gap, GapCount

OWN_TEMPLATE = "Give a template of your own (chat_template), or correct the model's."
_FINDINGS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def gap_findings(counts: dict[Gap, GapCount], known: Collection[Fault] = ()) -> Iterator[Finding]:
    """A finding for each gap, with the first row and the number of rows.

    `known` are faults found in the tokens, which say more about a missing end token.
    """
    for gap, count in counts.items():
        if gap is Gap.NO_END and {Fault.END_MASKED, Fault.END_NEVER_WRITTEN} & {*known}:
            continue
        texts = {name: text.replace("{place}", count.place) for name, text in _FINDINGS[gap.value].items()}
        changes = {"loss_on": "last"} if gap is Gap.EARLIER_REASONING else {}
        setting = "loss_on" if changes else "chat_template"
        shown, fault = (count.text,) if count.text else (), Fault(texts.pop("fault"))
        yield Finding(fault, **texts, row=count.first, rows=count.rows, tokens=shown, setting=setting, changes=changes)
