"""The samples of a run, and their records, whose size does not depend on the length of the run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from training.reports.report import Report
from training.run_folder.events import SampleDrawn, encode
from training.trainer.questions import Question

MOST_BYTES = 32 * 2**20
"""Size of the records of a run's samples."""
STEP_BYTES = 2 * 2**20
"""Size of those of a step."""
LONGEST_TEXT = 20_000
"""Characters of a prompt, an expected answer or a sample; of a longer one the middle is left out."""


@dataclass(frozen=True)
class Scored:
    """A sample and its scores: its number in the epoch, its tokens, whether it `ended` itself, the score of each reward, and their
    weighted sum. None where no reward applies. `repeats`: it does not count. `question` and `text` (without special tokens) are
    there if they were asked for. `lost`: a reward failed for it."""

    sample: int
    tokens: int
    ended: bool
    scores: dict[str, float | None]
    reward: float | None
    repeats: bool = False
    lost: bool = False
    question: Question | None = None
    text: str = ""


class SampleWriter:
    """Writes the samples of steps as records, on rank 0: at most MOST_BYTES in the whole run.

    Each step adds the same share to what may be written, and a step that needs more is not kept. So a long run keeps steps at about
    equal distances. A resumed run writes what its remaining steps add.
    """

    def __init__(self, report: Report, generations: int, start_step: int, total_steps: int) -> None:
        self._report, self._generations, self._total = report, generations, max(total_steps, 1)
        self._written = self._most(start_step) if start_step else 0

    def write(self, step: int, samples: Sequence[Scored], advantages: Mapping[int, float] | None = None) -> None:
        """Writes the samples of all ranks, with questions and texts, and the advantage of each by its number, if they have one. Of
        a step with more than STEP_BYTES it writes the first ones.

        Raises:
            OSError: the disk is full.
        """
        if self._report.rank or self._written >= self._most(step):
            return
        size, records = 0, list[SampleDrawn]()
        for record in self._records(step, samples, advantages or {}):
            size += len(encode(record))
            if size > STEP_BYTES:
                break
            records.append(record)
        if self._written + size <= self._most(step):
            self._written += size
            for record in records:
                self._report.for_run(record)

    def _most(self, step: int) -> int:
        """The bytes that may be written up to a step."""
        return STEP_BYTES + (MOST_BYTES - STEP_BYTES) * step // self._total

    def _records(self, step: int, samples: Sequence[Scored], advantages: Mapping[int, float]) -> Iterator[SampleDrawn]:
        for scored in samples:
            assert scored.question
            yield SampleDrawn(
                step=step, sample=scored.sample, group=scored.sample // self._generations,
                row=scored.question.row, file=scored.question.file,
                prompt=_shortened(scored.question.prompt), expected=_shortened(scored.question.expected),
                text=_shortened(scored.text), tokens=scored.tokens, ended=scored.ended,
                scores=scored.scores, reward=scored.reward, advantage=advantages.get(scored.sample),
            )  # fmt: skip


def _shortened(text: str) -> str:
    half = LONGEST_TEXT // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]} ... ({left_out:,} characters left out) ... {text[-half:]}" if left_out > 0 else text
