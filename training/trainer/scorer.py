"""Scores the samples of a rank in a process of its own, and exchanges the scores with the other ranks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch.distributed as dist
from transformers import PreTrainedTokenizerBase

from training.chat.rendering_settings import ChatSettings
from training.config.run_config import RunConfig
from training.data.example import Row
from training.data.rows import DataRows, read_files
from training.reports.report import Report
from training.run_folder.paths import rewards_dir
from training.scoring.judge import key_of_rank
from training.scoring.reward_process import RewardProcess
from training.scoring.rewards import CODE_FILE, Reward, Sample, rewards_of, total
from training.tokens.rendering import Renderer
from training.trainer.prepare import Data

_JUDGE_SECONDS = 120.0  # for the samples of a step, for which all ranks wait


class Question(NamedTuple):
    """A row of the data: prompt, expected answer, all columns, its number in its file from 0, and the name of this file if
    there are several."""

    prompt: str
    expected: str
    columns: Row
    row: int
    file: str


Questions = dict[int, Question]
"""Questions by the number of their row over all files."""


@dataclass(frozen=True)
class Scored:
    """A sample and its scores: its number in the epoch, its tokens, whether it `ended` itself, the score of each reward, and their
    weighted sum. None where no reward applies. `repeats`: it does not count. `question` and `text` (as the rewards
    get it) are there if they were asked for."""

    sample: int
    tokens: int
    ended: bool
    scores: dict[str, float | None]
    reward: float | None
    repeats: bool = False
    question: Question | None = None
    text: str = ""


class Scorer:
    """The rewards of a run on one rank: a context in which their process runs."""

    def __init__(
        self, config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase, run_dir: Path, report: Report
    ) -> None:
        self.rewards: tuple[Reward, ...] = rewards_of(config)
        code = {CODE_FILE: config.reward_code} if config.reward_code else {}
        self._process = RewardProcess(
            self.rewards,
            code,
            rewards_dir(run_dir) / str(report.rank),
            judge_key=key_of_rank,
            judge_seconds=_JUDGE_SECONDS,
        )
        self._tokenizer, self._report = tokenizer, report
        renderer = Renderer(tokenizer, ChatSettings.of(config))
        self._train = _questions(set(_rows(data.train)), data.files, renderer)
        held_out = set(_rows(data.held_out)) if data.held_out else set()
        self._held_out = _questions(held_out, data.held_out_files, renderer)
        self._named: set[str] = set()

    def __enter__(self) -> Self:
        self._process.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.__exit__(*error)

    def held_out(self, rows: Sequence[int], answers: Sequence[list[int]]) -> list[float | None]:
        """The rewards of answers (tokens) to held-out rows."""
        return total(self.rewards, self._values([self._held_out[row] for row in rows], self._texts(answers)))

    def of_expected(self, rows: Sequence[int]) -> list[float]:
        """The rewards of the expected answers to training rows, without those to which none applies."""
        questions = [self._train[row] for row in rows]
        values = self._values(questions, [question.expected.strip() for question in questions])
        return [reward for reward in total(self.rewards, values) if reward is not None]

    def _texts(self, answers: Sequence[list[int]]) -> list[str]:
        return [text.strip() for text in self._tokenizer.batch_decode(answers, skip_special_tokens=True)]

    def _values(self, questions: Sequence[Question], texts: Sequence[str]) -> dict[str, list[float | None]]:
        """The scores of answers to questions, by reward. What goes wrong with a reward is said once."""
        samples = [
            Sample(question.prompt, text, question.expected.strip(), question.columns)
            for question, text in zip(questions, texts, strict=True)
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
        with_texts: bool = False,
    ) -> list[list[Scored]]:
        """The samples of each rank with their scores. A sample ends itself by one of the tokens `ends`. The last `repeats` of this
        rank do not count. `with_texts`: they have their questions and texts. A collective."""
        questions, texts = [self._train[row] for row in rows], self._texts(answers)
        values = self._values(questions, texts)
        sums, counted = total(self.rewards, values), len(samples) - repeats
        mine = [
            Scored(
                sample, len(answers[index]), bool(answers[index]) and answers[index][-1] in ends,
                {name: of_rows[index] for name, of_rows in values.items()}, sums[index], index >= counted,
                *((questions[index]._replace(columns={}), texts[index]) if with_texts else ()),
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


def _questions(rows: set[int], files: DataRows, renderer: Renderer) -> Questions:
    questions = {}
    for number, file, place, row, example in read_files(files.files):
        if number in rows and example:
            name = file.name if len(files.files) > 1 else ""
            questions[number] = Question(*renderer.question(example), row, place, name)
    return questions
