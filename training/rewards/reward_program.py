"""`python -m training.rewards.reward_program`: scores samples by rewards, in a process with limits and without network.

Standard input has lines of JSON: first {"rewards": [...], "folder": PATH, "parent": PID}, then batches {"samples": [...],
"rewards": [names]}. It answers with lines of JSON, each as soon as it is known, so that its parent knows what it did when it dies:
["reward", name], ["together", name] of one that takes all samples at once, ["value", index, score or null], ["failed", index or
null, kind, message], ["printed", characters], ["done"].
"""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from training.jail.confinement import confine
from training.rewards import built_in
from training.rewards.own_functions import OwnReward, RewardFailed, described, load
from training.rewards.rewards import Reward
from training.rewards.sample import Sample

Say = Callable[..., None]


class _Printed(io.TextIOBase):
    """Standard output and error of the user's code: counts what is printed, and discards it."""

    count = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.count += len(text)
        return len(text)


class _Scorer:
    def __init__(self, rewards: Sequence[Reward], folder: Path, say: Say) -> None:
        self._say, self._printed = say, _Printed()
        sys.stdout = sys.stderr = self._printed
        built_in.import_packages({reward.kind for reward in rewards})
        sys.path.append(str(folder))  # last: a file of the user is imported in place of no other module
        files: dict[str, dict[str, Any] | RewardFailed] = {}
        self._rewards: dict[str, tuple[Reward, OwnReward | RewardFailed | None]] = {}
        for reward in rewards:
            say("reward", reward.name)
            own = self._loaded(reward, folder, files) if reward.own else None
            if isinstance(own, OwnReward) and own.batch:
                say("together", reward.name)
            self._rewards[reward.name] = reward, own
        say("done")

    @staticmethod
    def _loaded(
        reward: Reward, folder: Path, files: dict[str, dict[str, Any] | RewardFailed]
    ) -> OwnReward | RewardFailed:
        assert reward.own is not None
        file = reward.own[0]
        try:
            if file not in files:
                files[file] = load(folder / file)
            namespace = files[file]
            return namespace if isinstance(namespace, RewardFailed) else OwnReward(reward, folder / file, namespace)
        except RewardFailed as error:
            files.setdefault(file, error)
            return error

    def score(self, samples: Sequence[Sample], names: Sequence[str]) -> None:
        """Says the scores of a batch by the rewards of these names."""
        places = [sample.place(index) for index, sample in enumerate(samples)]
        for name in names:
            self._say("reward", name)
            before = self._printed.count
            try:
                for index, found in enumerate(self._scores(name, samples, places)):
                    if isinstance(found, RewardFailed):
                        self._say("failed", index, found.kind, str(found))
                    else:
                        self._say("value", index, found)
            except RewardFailed as error:
                self._say("failed", None, error.kind, str(error))
            self._say("printed", self._printed.count - before)
        self._say("done")

    def _scores(
        self, name: str, samples: Sequence[Sample], places: Sequence[str]
    ) -> Iterator[float | RewardFailed | None]:
        reward, own = self._rewards[name]
        if isinstance(own, RewardFailed):
            raise own
        if own is not None and own.batch:
            yield from own.score_all(samples, places)
            return
        for sample, place in zip(samples, places, strict=True):
            try:
                yield own.score(sample, place) if own else _built_in(reward, sample, place)
            except RewardFailed as error:
                yield error


def _built_in(reward: Reward, sample: Sample, place: str) -> float | None:
    try:
        return built_in.REWARDS[reward.kind](sample, **reward.options)
    except Exception as error:
        raise RewardFailed("exception", f"{place}, {reward.name}: {described(error)}") from error


def main() -> None:
    """Answers batches until standard input ends. The user's code cannot reach the pipes by their usual numbers."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def say(*words: Any) -> None:
        os.write(answers, json.dumps(words).encode() + b"\n")

    start = json.loads(requests.readline())
    confine("a reward", [Path(start["folder"])], start["parent"])
    scorer = _Scorer([Reward(**one) for one in start["rewards"]], Path(start["folder"]), say)
    for line in requests:
        batch = json.loads(line)
        scorer.score([Sample(**one) for one in batch["samples"]], batch["rewards"])


if __name__ == "__main__":
    main()
