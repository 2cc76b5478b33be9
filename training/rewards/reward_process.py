"""Scores samples in a process with limits, without network and without writing: no reward can harm the run or the machine."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from training.rewards.built_in import JUDGE, MODEL
from training.rewards.judge import Judge, JudgeError, judged
from training.rewards.reward_batch import RewardBatch, Scores
from training.rewards.reward_child import Died, RewardChild
from training.rewards.reward_options import judge_of
from training.rewards.rewards import Reward
from training.rewards.sample import Sample

GIVEN_UP = "given up"
MEMORY_BYTES = 2 * 2**30
DEATHS = 3
"""Batches in a row at which a reward ended its process, before it is given up."""

_TRIES = 2  # of a sample, before it has no score
_TRIES_TOGETHER = 5  # of a whole batch, which no single sample ends
_PAUSE_SECONDS = (
    0.2  # before the third try of a batch, and twice as long before each later one: others may kill what they see
)
_AGAIN = 3  # times the seconds of a batch, for what is computed again of it
_LOADING_SECONDS = 60.0  # to import what the files name
_JUDGE_SECONDS = 600.0  # for a batch


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
        self._loaded: set[str] = set()  # the rewards that it can compute

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
        """The scores of a batch, by every reward.

        A process that ends, by itself or by others, is started again for the samples that have no answer yet. A sample at which it
        ends twice has no score.
        """
        began = time.monotonic()
        batch, every = (
            RewardBatch(samples, {reward.name: [None] * len(samples) for reward in self._rewards}),
            range(len(samples)),
        )
        waiting = [reward.name for reward in self._rewards if reward.name not in self._judges] if samples else []
        while waiting := [name for name in waiting if not self._is_given_up(name, batch)]:
            try:
                self._ask(batch, waiting, every)
                break
            except Died as death:
                name = batch.reward or waiting[0]
                finished = [] if batch.loading else waiting[: waiting.index(name)]
                self._deaths |= dict.fromkeys(finished, 0)
                waiting = [other for other in waiting if other != name and other not in finished]
                self._again(name, death, batch)
        for name, judge in self._judges.items():
            if samples and not self._is_given_up(name, batch):
                self._ask_judge(name, judge, batch)
        self._note_none(batch)
        return batch.scores(time.monotonic() - began)

    def _ask(self, batch: RewardBatch, names: Sequence[str], asked: Sequence[int]) -> None:
        """Has the process score samples of the batch by these rewards, and starts it if it is not there.

        Raises:
            Died: it ended, or was ended.
        """
        batch.begin(asked)
        try:
            child = self._child if self._child and self._loaded.issuperset(names) else self._started(batch, names)
            batch.loading = False
            batch.begin(asked)
            samples = [vars(batch.samples[index]) for index in asked]
            child.exchange({"samples": samples, "rewards": list(names)}, batch.take, self._seconds)
        except BaseException:  # its further answers would be taken for those of the next request
            self._end()
            raise
        self._deaths |= dict.fromkeys(names, 0)

    def _started(self, batch: RewardBatch, names: Sequence[str]) -> RewardChild:
        self._end()
        kept = [asdict(reward) for reward in self._rewards if reward.name in names]
        self._child = child = RewardChild(self._memory)
        batch.loading, self._loaded = True, set(names)
        start = {"rewards": kept, "folder": str(self._folder), "parent": os.getpid()}
        child.exchange(start, batch.take, max(self._seconds, _LOADING_SECONDS))
        return child

    def _again(self, name: str, death: Died, batch: RewardBatch) -> None:
        """Scores the rest of a batch by a reward whose process ended, until each sample has a score or has ended it twice."""
        before, lost = self._deaths[name], False
        deadline, deaths = time.monotonic() + _AGAIN * self._seconds, Counter[int | None]()
        while left := batch.left:
            together = batch.loading or name in batch.together
            at = None if together else left[0]
            deaths[at] += 1
            late = time.monotonic() > deadline
            if late or deaths[at] == (_TRIES_TOGETHER if together else _TRIES):
                lost, failed = True, left if late or together else left[:1]
                self._lose(name, failed, death, batch, together=late or together)
                left = left[len(failed) :]
            if not left:
                break
            if deaths[None] >= _TRIES:
                time.sleep(_PAUSE_SECONDS * 2 ** (deaths[None] - _TRIES))
            try:
                self._ask(batch, [name], left)
                break
            except Died as error:
                death = error
        self._deaths[name] = before + 1 if lost else 0

    def _lose(self, name: str, failed: Sequence[int], death: Died, batch: RewardBatch, *, together: bool) -> None:
        """Notes that the process ended once more, so that these samples have no score."""
        self._last_deaths[name] = str(death)
        if batch.loading:
            where = f"{name}, while its file was read"
        elif together:
            where = f"{name}, for {len(failed):,} samples of a batch"
        else:
            where = f"{batch.samples[failed[0]].place(failed[0])}, {name}"
        batch.fail(name, failed, death.kind, f"{where}: {death}, also in a new process")

    def _ask_judge(self, name: str, judge: Judge, batch: RewardBatch) -> None:
        """Scores the batch by a judge, within a limit of time. After two errors in a row it is not asked for the rest."""
        records = [
            vars(sample) | {"row": index if sample.number is None else sample.number}
            for index, sample in enumerate(batch.samples)
        ]
        seconds, at = self._judge_seconds, 0
        deadline, reason = time.monotonic() + seconds, f"took more than {seconds:g} s"
        try:
            key = self._judge_key(judge.url)
            replies = judged(judge, records, lambda *_: None, lambda: time.monotonic() > deadline, key, seconds)
            for at, answer in enumerate(replies, 1):
                batch.values[name][at - 1] = answer.score
                if answer.score is None:
                    wanted = f"no number from 0 to {judge.scale:g} in the reply"
                    said = f"{batch.samples[at - 1].place(at - 1)}, {name}: {wanted}: {answer.reply[:100]!r}"
                    batch.fail(name, [at - 1], "judge", f"{name}: {answer.error.rstrip('.')}" if answer.error else said)
            if at == len(records):
                self._deaths[name] = 0
                return
        except JudgeError as error:
            reason = error.message.rstrip(".")
        self._deaths[name] += 1
        self._last_deaths[name] = reason
        batch.fail(name, range(at, len(records)), "judge", f"{name}: {reason}")

    def _is_given_up(self, name: str, batch: RewardBatch) -> bool:
        given_up = self._deaths[name] >= DEATHS
        if given_up and name not in batch.failed:
            message = f"{name} is not computed any more: in {DEATHS} batches in a row it {self._last_deaths[name]}"
            batch.fail(name, range(len(batch.samples)), GIVEN_UP, message)
        return given_up

    def _note_none(self, batch: RewardBatch) -> None:
        for reward in self._rewards:
            if reward.name not in batch.failed and batch.samples and not _any(batch.values[reward.name]):
                message = f"{reward.name} gave None for all {len(batch.samples)} samples: it applies to none of them"
                batch.fail(reward.name, (), "none", message)

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


def _any(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)
