"""Scores samples in a process with limits, without network and without writing: no reward can harm the run or the machine."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from training.scoring.built_in import JUDGE, MODEL
from training.scoring.judge import Judge, JudgeError, judged
from training.scoring.reward_child import Died, RewardChild
from training.scoring.reward_options import judge_of
from training.scoring.rewards import Reward, Sample

GIVEN_UP = "given up"
MEMORY_BYTES = 2 * 2**30
DEATHS = 3
"""Batches in a row at which a reward ended its process, before it is given up."""

_LOADING_SECONDS = 60.0  # to import what the files name
_JUDGE_SECONDS = 600.0  # for a batch
_MUCH_PRINTED = 1_000_000  # characters in a batch


@dataclass(frozen=True)
class Trouble:
    """What went wrong with a reward in a batch: the samples without a score for it, the first message, and its kind.

    Kinds: exception, not a number, refused (network, files, processes), memory, time, ended (the process), given up, file (the
    code cannot be used), judge, reward model, none (it applies to no sample), printed.
    """

    failed: int
    sentence: str
    kind: str


@dataclass(frozen=True)
class Scores:
    """The scores of a batch: by reward one per sample, None if it does not apply or failed. `seconds` is the time they took."""

    values: dict[str, list[float | None]]
    troubles: dict[str, Trouble]
    seconds: float


@dataclass
class _Batch:
    """What is known of a batch."""

    samples: Sequence[Sample]
    values: dict[str, list[float | None]]
    troubles: dict[str, Trouble] = field(default_factory=dict)
    loading: bool = True  # the files of the rewards
    reward: str = ""  # that is being loaded or computed
    done: int = 0  # its samples that have an answer

    def fail(self, name: str, count: int, kind: str, message: str) -> None:
        self.troubles = together(self.troubles, {name: Trouble(count, message, kind)})

    def take(self, word: str, *values: Any) -> None:
        """Notes an answer of the process.

        Raises:
            ValueError, TypeError, LookupError: it is none.
        """
        if word == "reward":
            if values[0] not in self.values:
                raise ValueError(values[0])
            self.reward, self.done = values[0], 0
        elif word == "value":
            index, value = values
            self.values[self.reward][index] = None if value is None else float(value)
            self.done = index + 1
        elif word == "failed":
            index, kind, message = values
            self.fail(self.reward, len(self.samples) if index is None else 1, kind, message)
            self.done = len(self.samples) if index is None else index + 1
        elif word == "printed" and values[0] > _MUCH_PRINTED and self.reward not in self.troubles:
            message = f"printed {values[0] / 1e6:.1f} million characters, which are discarded"
            self.troubles[self.reward] = Trouble(0, message, "printed")


def together(first: Mapping[str, Trouble], second: Mapping[str, Trouble]) -> dict[str, Trouble]:
    """The troubles of two batches: their samples added, with the first message."""
    found = dict(first)
    for name, trouble in second.items():
        known = found.get(name)
        kept = known if known and (known.failed or not trouble.failed) else trouble
        failed = trouble.failed + (known.failed if known else 0)
        found[name] = Trouble(failed, kept.sentence, kept.kind)
    return found


class RewardProcess:
    """A process that scores samples; it is started again after it was ended. Use it as a context manager. Reward models are not its
    part, but of a process with torch (training/models/reward_model.py).

    `code` has the files of the rewards' functions; those that a reward names are written to `folder`, which no other process uses.
    Judges are asked by the process that uses this object, with the key that `judge_key` has for an address.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        code: Mapping[str, str],
        folder: Path,
        *,
        seconds_per_batch: float = 60.0,
        memory_bytes: int = MEMORY_BYTES,
        judge_key: Callable[[str], str | None] = lambda _: None,
        judge_seconds: float = _JUDGE_SECONDS,
    ) -> None:
        self._rewards = tuple(reward for reward in rewards if reward.kind != MODEL)
        named = {reward.own[0] for reward in rewards if reward.own}
        self._code = {file: text for file, text in code.items() if file in named}
        self._folder = folder.absolute()
        self._seconds, self._memory, self._judge_key = seconds_per_batch, memory_bytes, judge_key
        self._judge_seconds = judge_seconds
        self._judges = {one.name: judge_of(one.options) for one in rewards if one.kind == JUDGE}
        self._deaths = dict.fromkeys((reward.name for reward in rewards), 0)
        self._last_deaths: dict[str, str] = {}
        self._child: RewardChild | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, text in self._code.items():
            (self._folder / name).write_text(text, encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def score(self, samples: Sequence[Sample]) -> Scores:
        """The scores of a batch, by every reward."""
        began = time.monotonic()
        batch = _Batch(samples, {reward.name: [None] * len(samples) for reward in self._rewards})
        waiting = [reward.name for reward in self._rewards if reward.name not in self._judges] if samples else []
        while waiting := [name for name in waiting if not self._is_given_up(name, batch)]:
            batch.reward, batch.done = "", 0
            try:
                self._ask(batch, waiting)
                break
            except Died as death:
                waiting = self._after_death(death, batch, waiting)
                self._end()
            except BaseException:  # its further answers would be taken for those of the next batch
                self._end()
                raise
        for name, judge in self._judges.items():
            if samples and not self._is_given_up(name, batch):
                self._ask_judge(name, judge, batch)
        self._note_none(batch)
        return Scores(batch.values, batch.troubles, time.monotonic() - began)

    def _ask(self, batch: _Batch, names: Sequence[str]) -> None:
        """Has the process score the batch by these rewards."""
        if self._child is None:
            kept = [asdict(reward) for reward in self._rewards if self._counts(reward)]
            self._child, batch.loading = RewardChild(self._memory), True
            start = {"rewards": kept, "folder": str(self._folder), "parent": os.getpid()}
            self._child.exchange(start, batch.take, max(self._seconds, _LOADING_SECONDS))
        batch.loading = False
        samples = [vars(sample) for sample in batch.samples]
        self._child.exchange({"samples": samples, "rewards": list(names)}, batch.take, self._seconds)
        for name in names:
            self._deaths[name] = 0

    def _counts(self, reward: Reward) -> bool:
        return reward.name not in self._judges and self._deaths[reward.name] < DEATHS

    def _ask_judge(self, name: str, judge: Judge, batch: _Batch) -> None:
        """Scores the batch by a judge, whose answers have a limit of time."""
        records = [
            vars(sample) | {"row": index if sample.number is None else sample.number}
            for index, sample in enumerate(batch.samples)
        ]
        seconds, done = self._judge_seconds, 0
        deadline, late = time.monotonic() + seconds, f"took more than {seconds:g} s"
        try:
            key = self._judge_key(judge.url)
            answers = judged(judge, records, lambda *_: None, lambda: time.monotonic() > deadline, key, seconds)
            for done, answer in enumerate(answers, 1):
                batch.values[name][done - 1] = answer.score
                if answer.score is None:
                    place = batch.samples[done - 1].place(done - 1)
                    message = (
                        f"{place}, {name}: no number from 0 to {judge.scale:g} in the reply: {answer.reply[:100]!r}"
                    )
                    batch.fail(name, 1, "judge", message)
        except JudgeError as error:
            late = error.message.rstrip(".")
        if done == len(batch.samples):
            self._deaths[name] = 0
            return
        self._deaths[name] += 1
        self._last_deaths[name] = late
        batch.fail(name, len(batch.samples) - done, "judge", f"{name}: {late}")

    def _after_death(self, death: Died, batch: _Batch, waiting: list[str]) -> list[str]:
        """Notes which reward ended the process, and returns those that are still to be computed."""
        name = batch.reward or waiting[0]
        self._deaths[name] += 1
        self._last_deaths[name] = str(death)
        if batch.loading:
            batch.fail(name, len(batch.samples), death.kind, f"{name}, while its file was read: {death}")
            return [other for other in waiting if other != name]
        place = batch.samples[min(batch.done, len(batch.samples) - 1)].place(batch.done)
        batch.fail(name, len(batch.samples) - batch.done, death.kind, f"{place}, {name}: {death}")
        finished, waiting = waiting[: waiting.index(name)], waiting[waiting.index(name) + 1 :]
        self._deaths |= dict.fromkeys(finished, 0)
        return waiting

    def _is_given_up(self, name: str, batch: _Batch) -> bool:
        given_up = self._deaths[name] >= DEATHS
        if given_up and name not in batch.troubles:
            message = f"{name} is not computed any more: in {DEATHS} batches in a row it {self._last_deaths[name]}"
            batch.fail(name, len(batch.samples), GIVEN_UP, message)
        return given_up

    def _note_none(self, batch: _Batch) -> None:
        for reward in self._rewards:
            if reward.name not in batch.troubles and batch.samples and not _any(batch.values[reward.name]):
                message = f"{reward.name} gave None for all {len(batch.samples)} samples: it applies to none of them"
                batch.troubles[reward.name] = Trouble(0, message, "none")

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


def _any(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)
