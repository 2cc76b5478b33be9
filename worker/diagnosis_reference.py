"""docs/diagnosis.md, written from the table of causes: `python -m worker.diagnosis_reference`."""

from pathlib import Path

from training.fields import settings
from worker.cause import Cause
from worker.causes import BY_SUBJECT, CAUSES

TARGET = Path(__file__).resolve().parent.parent / "docs" / "diagnosis.md"

INTRODUCTION = f"""\
# Why a run failed

Written by `python -m worker.diagnosis_reference` from `worker/causes_*.py`: change those files, then run this command.

Lathe reads the log of a failed run and names the cause, the lines that show it, the rank that failed first, what mends it, and
the settings to change. A failed run's page has all of that, with a button that opens New run with those settings. For a log
that Lathe did not make there are the page *Diagnose*, where it is pasted or dropped, the command and REST:

    lathe diagnose train.log                                  # or - for standard input
    lathe diagnose train.log --model FOLDER --micro-batch 4 --json
    lathe diagnose --run RUN
    curl --data-binary @train.log http://127.0.0.1:7860/api/diagnoses

With `--json` the answer has `cause` (one of the names below, or `unknown`), `title`, `explanation`, `confidence`, `evidence`
(lines), `evidence_lines` (their numbers), `first_failed_rank` (or null), `fix` (sentences), `changes` (settings of a run) and
`inferred`.

**Confidence** is that of the sign that was found, from 0 to 1: 0.9 and more is a message that this cause alone prints, about
0.7 one that has other causes as well, 0.5 a symptom. It is lower where training went on after it, or where another cause shows
too.

**Several ranks**: lines are told apart by the marks of torch, torchrun, Lightning, mpirun and srun. The launcher's own
traceback is never the cause, only its word on which rank failed first. What the other ranks say because one is gone (a lost
connection, a collective that timed out) counts only where nothing else is found; of a collective that timed out the rank that
did not come is named. Where no cause is known, the diagnosis says so and shows the first error of the first rank to fail.

**Memory**: of a GPU that ran out of memory `inferred` says how much was asked for (`bytes_requested`), in which phase, and what
the GPU held. With the model's `config.json` (`--model`), the line of code that asked and the size tell the tensor: an attention
matrix (batch, heads, L, L), logits (batch, L, vocabulary) or an MLP activation (batch, L, intermediate), and so `batch_size`
and `sequence_length`. The micro batch is read from the log or given; without it every one that fits is a candidate, and the
explanation says so.

A log may have any size: its beginning, its end and the first traceback between them are read. Secrets are struck out of the
evidence.

{len(CAUSES)} causes are known. One more is an entry in the table of its subject (`worker/causes_*.py`) and a log in
`tests/logs`.
"""


def render() -> str:
    """The whole page as Markdown."""
    return "\n".join([INTRODUCTION, *(_section(subject, causes) for subject, causes in BY_SUBJECT.items())])


def _section(subject: str, causes: tuple[Cause, ...]) -> str:
    head = "| cause | what happened | what mends it | settings |\n| --- | --- | --- | --- |"
    return "\n".join([f"## {subject}", "", head, *(_row(cause) for cause in causes), ""])


def _row(cause: Cause) -> str:
    fix = (
        " ".join(cause.fix)
        or "As the tensor and the phase tell: a smaller micro batch, checkpointing, a shorter cut-off, sharding."
    )
    changes = ", ".join(f"`{name}: {_written(value)}`" for name, value in cause.changes.items() if name in settings())
    return f"| `{cause.name}` | {cause.title} | {fix.replace('|', chr(92) + '|')} | {changes} |"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
