"""What is known of a batch of samples while their scores are computed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from training.rewards.sample import Sample

_MUCH_PRINTED = 1_000_000  # characters in a batch
_LONGEST_MESSAGE = 2000


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
    """The scores of a batch: by reward one per sample, None if it does not apply or failed. `lost` are the samples that failed, by
    their place in the batch. `seconds` is the time they took."""

    values: dict[str, list[float | None]]
    troubles: dict[str, Trouble]
    lost: frozenset[int]
    seconds: float


@dataclass
class RewardBatch:
    """A batch and the request that computes a part of it: `asked` are its samples, by their place in the batch."""

    samples: Sequence[Sample]
    values: dict[str, list[float | None]]
    asked: Sequence[int] = ()
    loading: bool = True  # the files of the rewards
    reward: str = ""  # that is being loaded or computed
    done: int = 0  # samples of the request that have an answer
    together: set[str] = field(default_factory=set)  # rewards that take all samples at once
    said: dict[str, tuple[str, str]] = field(default_factory=dict)  # the first kind and message of each reward
    failed: dict[str, set[int]] = field(default_factory=dict)  # the samples without a score

    def begin(self, asked: Sequence[int]) -> None:
        """Forgets the request before."""
        self.asked, self.reward, self.done = asked, "", 0

    @property
    def left(self) -> list[int]:
        """The samples to compute again after the process ended: all of them by a reward that takes them together."""
        return list(self.asked if self.reward in self.together or self.loading else self.asked[self.done :])

    def fail(self, name: str, indexes: Sequence[int], kind: str, message: str) -> None:
        """Notes samples without a score; the first message is kept."""
        if name not in self.failed or (indexes and not self.failed[name]):
            self.said[name] = kind, message
        self.failed.setdefault(name, set()).update(indexes)

    def take(self, word: str, *values: Any) -> None:
        """Notes an answer of the process.

        Raises:
            ValueError, TypeError, LookupError, OverflowError: it is none.
        """
        if word in ("reward", "together"):
            if values[0] not in self.values:
                raise ValueError(values[0])
            if word == "together":
                self.together.add(values[0])
            else:
                self.reward, self.done = values[0], 0
        elif word == "value":
            place, value = values
            self.values[self.reward][self._index(place)] = None if value is None else _finite(value)
            self.done = place + 1
        elif word == "failed":
            place, kind, message = values
            self.fail(self.reward, self.asked if place is None else [self._index(place)], kind, _shortened(message))
            self.done = len(self.asked) if place is None else place + 1
        elif word == "printed" and values[0] > _MUCH_PRINTED:
            self.fail(
                self.reward, (), "printed", f"printed {values[0] / 1e6:.1f} million characters, which are discarded"
            )

    def _index(self, place: int) -> int:
        if place < 0:
            raise IndexError(place)
        return self.asked[place]

    def scores(self, seconds: float) -> Scores:
        """What is known of the batch at its end."""
        troubles = {name: Trouble(len(self.failed[name]), *reversed(said)) for name, said in self.said.items()}
        return Scores(self.values, troubles, frozenset().union(*self.failed.values()), seconds)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(number)
    return number


def _shortened(message: Any) -> str:
    if not isinstance(message, str):
        raise TypeError(message)
    return message[:_LONGEST_MESSAGE]


def together(first: Mapping[str, Trouble], second: Mapping[str, Trouble]) -> dict[str, Trouble]:
    """The troubles of two batches: their samples added, with the first message."""
    found = dict(first)
    for name, trouble in second.items():
        known = found.get(name)
        kept = known if known and (known.failed or not trouble.failed) else trouble
        failed = trouble.failed + (known.failed if known else 0)
        found[name] = Trouble(failed, kept.sentence, kept.kind)
    return found
