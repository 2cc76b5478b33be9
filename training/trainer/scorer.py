"""Scores the samples of a rank in a process of its own, and exchanges the scores with the other ranks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch.distributed as dist
from transformers import PreTrainedTokenizerBase

from training.chat.rendering_settings import ChatSettings
from training.config.run_config import RunConfig
from training.data.example import Row
from training.data.rows import DataRows, read_files
from training.reports.report import Report
from training.run_folder.paths import rewards_dir
from training.scoring.reward_process import RewardProcess
from training.scoring.rewards import CODE_FILE, Reward, Sample, rewards_of, total
from training.tokens.rendering import Renderer
from training.trainer.prepare import Data

Asked = dict[int, tuple[str, str, Row]]
"""Prompt, expected answer and columns of rows, by their number over all files."""


@dataclass(frozen=True)
class Scored:
    """A sample and its scores: its number in the epoch, its tokens, whether it `ended` itself, the score of each reward, and their
    weighted sum. None where no reward applies. `repeats`: it does not count."""

    sample: int
    tokens: int
    ended: bool
    scores: dict[str, float | None]
    reward: float | None
    repeats: bool = False


class Scorer:
    """The rewards of a run on one rank: a context in which their process runs."""

    def __init__(
        self, config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase, run_dir: Path, report: Report
    ) -> None:
        self.rewards: tuple[Reward, ...] = rewards_of(config)
        code = {CODE_FILE: config.reward_code} if config.reward_code else {}
        self._process = RewardProcess(self.rewards, code, rewards_dir(run_dir) / str(report.rank))
        self._tokenizer, self._report = tokenizer, report
        renderer = Renderer(tokenizer, ChatSettings.of(config))
        self._train = _asked(set(_rows(data.train)), data.files, renderer)
        held_out = set(_rows(data.held_out)) if data.held_out else set()
        self._held_out = _asked(held_out, data.held_out_files, renderer)
        self._named: set[str] = set()

    def __enter__(self) -> Self:
        self._process.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.__exit__(*error)

    def held_out(self, rows: Sequence[int], answers: Sequence[list[int]]) -> list[float | None]:
        """The rewards of answers (tokens) to held-out rows."""
        return total(self.rewards, self._values(self._held_out, rows, self._texts(answers)))

    def of_expected(self, rows: Sequence[int]) -> list[float]:
        """The rewards of the expected answers to training rows, without those to which none applies."""
        values = self._values(self._train, rows, [self._train[row][1] for row in rows])
        return [reward for reward in total(self.rewards, values) if reward is not None]

    def _texts(self, answers: Sequence[list[int]]) -> list[str]:
        return list(self._tokenizer.batch_decode(answers, skip_special_tokens=True))

    def _values(self, asked: Asked, rows: Sequence[int], texts: Sequence[str]) -> dict[str, list[float | None]]:
        """The scores of answers to rows, by reward. What goes wrong with a reward is said once."""
        samples = [
            Sample(asked[row][0], text.strip(), asked[row][1].strip(), asked[row][2])
            for row, text in zip(rows, texts, strict=True)
        ]
        scores = self._process.score(samples)
        for name, trouble in scores.troubles.items():
            if name not in self._named:
                self._named.add(name)
                self._report.warn(f"Reward {name}: {trouble.sentence}.")
        return scores.values

    def scored(
        self,
        rows: Sequence[int],
        samples: Sequence[int],
        answers: Sequence[list[int]],
        *,
        ends: Collection[int],
        repeats: int,
    ) -> list[list[Scored]]:
        """The samples of each rank with their scores. A sample ends itself by one of the tokens `ends`. The last `repeats` of this
        rank do not count. A collective."""
        values = self._values(self._train, rows, self._texts(answers))
        sums, counted = total(self.rewards, values), len(samples) - repeats
        mine = [
            Scored(
                sample, len(answers[index]), bool(answers[index]) and answers[index][-1] in ends,
                {name: of_rows[index] for name, of_rows in values.items()}, sums[index], index >= counted,
            )
            for index, sample in enumerate(samples)
        ]  # fmt: skip
        every: list[Any] = [mine]
        if dist.is_initialized() and dist.get_world_size() > 1:
            every = [None] * dist.get_world_size()
            dist.all_gather_object(every, mine)
        return every


def _rows(view: Any) -> list[int]:
    """The numbers of a view's rows in the data."""
    return list(view.rows.tolist())


def _asked(rows: set[int], files: DataRows, renderer: Renderer) -> Asked:
    asked = {}
    for number, _, _, row, example in read_files(files.files):
        if number in rows and example:
            asked[number] = (*renderer.question(example), row)
    return asked
