"""docs/diagnosis.md, written from the table of causes: `python -m tools.references.diagnosis`."""

from pathlib import Path

from training.config.fields import settings
from worker.diagnosis.cause import Cause
from worker.diagnosis.causes import BY_SUBJECT, CAUSES
from worker.diagnosis.diagnosis import GROUP

TARGET = Path(__file__).resolve().parents[2] / "docs" / "diagnosis.md"

INTRODUCTION = f"""\
# Why a run failed

`python -m tools.references.diagnosis` writes this page from `worker/diagnosis/causes/`: change those files, then run it.

Lathe reads the log of a failed run and reports the cause, the evidence, the rank that failed first, the fix, and the settings
to change. A failed run's page shows all of that, with a button that opens New run with those settings. For logs of other
programs, use the page *Diagnose* (paste or drop the log), the command, or REST:

    lathe diagnose train.log                                  # or - for standard input
    lathe diagnose train.log --model FOLDER --micro-batch 4 --json
    lathe diagnose --run RUN
    curl --data-binary @train.log http://127.0.0.1:7860/api/diagnoses

With `--json` the answer has `cause` (one of the names below, `unknown`, or `no_failure`), `title`, `explanation`, `confidence`,
`evidence` (lines), `evidence_lines` (their numbers), `first_failed_rank` (or null), `fix` (sentences), `changes` (settings of a
run) and `inferred`.

**Confidence** is a number from 0 to 1: 0.9 and more for a message of this cause only, about 0.7 for a message that other causes
print too, 0.5 for a symptom. It is lower if training continued after the message, if another cause was found too, or if the run
ended with a later exception that Lathe does not know.

**Prefixes and broken lines**: Lathe first removes colors and what Ray, vLLM, Kubernetes, Docker, Google's log viewer, journald,
SageMaker and the usual loggers put before each line, and joins lines that a terminal broke at its width, inside words too. A
logger's level stays: a line of level INFO or WARNING is no error, except for a traceback or an exception that a program logs for
the one that failed, after which little else follows.

**Several ranks**: Lathe assigns lines to ranks by the prefixes of torch, torchrun, Lightning, mpirun and srun. If a launcher runs
in each task of srun, the tasks are nodes. The launcher's own traceback is never the cause; it only shows which rank and node failed
first. Follow-up errors of other ranks and nodes (a lost connection, a collective that timed out) count only if nothing else is
found; for a collective that timed out, the diagnosis names the rank that did not join. If the log contains several attempts, the
last one counts.

**The exception that ended the run decides**: of several exceptions of one process, the last. If it was raised because of another
one, or while another was handled, the last of them that Lathe knows counts, and of those with the same cause the first; one that
only says what could not be done ("We couldn't connect", "Failed to import") gives way to its cause. An error that your own code
was handling does not count if that code then failed by a mistake of its own (TypeError, SyntaxError). Other output before it
counts only if the exception reports what happened elsewhere, such as a lost worker or a CUDA error, or, with a lower confidence, if
no sign explains the exception and the same package raised the one before: a library that was not loaded fails again where it is
used. Source code in a traceback is
never the cause, nor is a text that says what to do if an error occurs. A warning is a symptom: it counts only if the log shows that
the run failed and has no traceback. If a person interrupted a training whose last losses are NaN, they are the cause. Python's
tracebacks are read, those of notebooks (IPython), of rich and of pytest, and
exceptions in the form of their repr.

**No known cause**: the answer is `unknown`, with the error that ended the rank that failed first, the frame that raised it, and the
known cause whose messages are most like it (`inferred.nearest`). If a message of that type of exception has nearly the same words,
its cause is the answer, with confidence 0.5. A log in which no line shows a failure has the cause `no_failure`.

**Errors in your own code** (`error_in_own_code`, confidence 0.5): the answer names the last line that is not of an installed
package, also in the forms of IPython and pytest, and what None or the shapes mean there. An exception that your code raises by
itself is `unknown`: its message says what is wrong.

**Advice** reads its own log: some messages have a title and a fix of their own, with their numbers, in place of those listed below,
such as those of vLLM's KV cache, a batch with labels but no loss, and a kernel's shared memory.

**Memory**: for a GPU that is out of memory, `inferred` contains the requested size (`bytes_requested`), the phase, and the memory
in use. With the model's `config.json` (`--model`), the line of code and the size identify the tensor: an attention matrix (batch,
heads, L, L), logits (batch, L, vocabulary) or an MLP activation (batch, L, intermediate), and so `batch_size` and
`sequence_length`. The micro batch is read from the log or given; without it, every size that fits is a candidate, and the
explanation says so.

**Compared with a run that finished**: the answer for a failed run of Lathe has `compared`: the newest finished run with the same
model or data (and task, method and strategy where possible), the settings that differ, and the log lines that only the failed
run printed. Numbers, paths and quoted texts do not make a line new.

A log may have any size: Lathe reads its start, its end and the first traceback between them. Secrets in the evidence are redacted.

Lathe knows {len(CAUSES)} causes. To add one, add an entry to the table of its subject (`worker/diagnosis/causes/`) and a log to
`tests/logs`; further forms of a cause's log are in `tests/logs/more`. `python -m benchmarks.diagnosis FOLDER` judges the diagnosis
on logs of your own with an `index.json` of the right causes; `--variants SEED` adds the same logs with prefixes and broken lines.
"""


def render() -> str:
    """The whole page as Markdown."""
    return "\n".join([INTRODUCTION, *(_section(subject, causes) for subject, causes in BY_SUBJECT.items())])


def _section(subject: str, causes: tuple[Cause, ...]) -> str:
    head = "| cause | what happened | fix | settings |\n| --- | --- | --- | --- |"
    return "\n".join([f"## {subject}", "", head, *(_row(cause) for cause in causes), ""])


def _row(cause: Cause) -> str:
    fix = (
        " ".join(GROUP.sub(lambda group: group[1].upper(), sentence) for sentence in cause.fix)
        or "Depends on the tensor and the phase: a smaller micro batch, gradient checkpointing, a lower max_length, sharding."
    )
    changes = ", ".join(f"`{name}: {_written(value)}`" for name, value in cause.changes.items() if name in settings())
    return f"| `{cause.name}` | {cause.title} | {fix.replace('|', chr(92) + '|')} | {changes} |"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
