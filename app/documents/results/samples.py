"""The samples that a run drew, by prompt, with their scores. Read-only."""

from pydantic import Field
from sqlmodel import Session

from app.documents import Document, Stored, columns
from worker.store import runs, samples
from worker.store.samples import Wanted
from worker.store.tables import Sample

_FIELDS = ("sample", "text", "tokens", "ended", "scores", "reward", "advantage")


@columns(Sample, _FIELDS)
class SampleAnswer(Stored):
    """A sample with its scores."""


class SampleGroup(Document):
    """The samples of a prompt in a step, in the order in which they were drawn; step 0 is before training."""

    step: int
    row: int = Field(description="number of the data row in its file, from 1")
    file: str = Field(description="name of the data file, if there are several")
    prompt: str
    expected: str = Field(description="the expected answer")
    samples: list[SampleAnswer]


class SamplePart(Document):
    """Samples by prompt, the names of their scores, and how many prompts there are. `steps`: those of which samples are kept."""

    rewards: list[str]
    groups: list[SampleGroup]
    total: int
    steps: list[int]


def part(session: Session, run_id: str, wanted: Wanted, *, offset: int, limit: int) -> SamplePart:
    """A part of the samples wanted. Raises RunNotFound if no run has this id."""
    run = runs.get(session=session, run_id=run_id)
    groups, total = samples.groups(session=session, run_id=run.id, wanted=wanted, offset=offset, limit=limit)
    steps = samples.steps(session=session, run_id=run.id)
    rewards = list(dict.fromkeys(name for group in groups for sample in group for name in sample.scores))
    return SamplePart(rewards=rewards, groups=[_group(group) for group in groups], total=total, steps=steps)


def _group(drawn: list[Sample]) -> SampleGroup:
    first = drawn[0]
    return SampleGroup(
        step=first.step, row=first.row + 1, file=first.file, prompt=first.prompt, expected=first.expected,
        samples=[SampleAnswer(**sample.shown(*_FIELDS)) for sample in drawn],
    )  # fmt: skip
