"""Scores the samples of a rank in a process of its own, and exchanges the scores with the other ranks."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from training.config.run_config import RunConfig
from training.data.example import prompt_text
from training.models.reward_model import RewardScorer, scores_of
from training.ranks.distributed import gathered
from training.reports.report import Report
from training.rewards.judge import key_of_rank
from training.rewards.reward_process import GIVEN_UP, RewardProcess
from training.rewards.rewards import CODE_FILE, Reward, rewards_of, total
from training.rewards.sample import Sample
from training.run_folder.paths import rewards_dir
from training.trainer.questions import Question, Questions
from training.trainer.sample_records import Scored

_JUDGE_SECONDS = 120.0  # for the samples of a step, for which all ranks wait


class Scorer:
    """The rewards of a run on one rank: a context in which their process runs."""

    def __init__(
        self, config: RunConfig, questions: Questions, run_dir: Path, report: Report, models: Mapping[str, RewardScorer]
    ) -> None:
        """`models` are the reward models among the rewards, by the name of the reward."""
        self.rewards: tuple[Reward, ...] = rewards_of(config)
        code = {CODE_FILE: config.reward_code} if config.reward_code else {}
        self._process = RewardProcess(
            self.rewards,
            code,
            rewards_dir(run_dir) / str(report.rank),
            judge_key=key_of_rank,
            judge_seconds=_JUDGE_SECONDS,
        )
        self._questions, self._report, self._models = questions, report, models
        self._troubles: dict[tuple[str, bool], str] = {}  # the first of each reward, and that it is given up

    def __enter__(self) -> Self:
        self._process.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.__exit__(*error)

    def held_out(self, rows: Sequence[int], answers: Sequence[list[int]]) -> list[float | None]:
        """The rewards of answers (tokens) to held-out rows."""
        questions = [self._questions.held_out[row] for row in rows]
        return total(self.rewards, self._values(questions, self._questions.texts(answers))[0])

    def of_expected(self, rows: Sequence[int]) -> list[float]:
        """The rewards of the expected answers to training rows, without those to which none applies."""
        answered = [row for row in rows if self._questions.train[row].example.answered]
        return self._of_texts(answered, [self._questions.train[row].expected.strip() for row in answered])

    def have_answers(self, rows: Sequence[int]) -> bool:
        """True if some of these training rows have expected answers."""
        return any(self._questions.train[row].example.answered for row in rows)

    def of_wrong(self, rows: Sequence[int]) -> list[float]:
        """The same of wrong answers: the expected ones to other rows, and empty ones."""
        others = [self._questions.train[row].expected.strip() for row in (*rows[1:], rows[0])]
        return self._of_texts(rows, others) + self._of_texts(rows, [""] * len(rows))

    def _of_texts(self, rows: Sequence[int], texts: Sequence[str]) -> list[float]:
        values, _ = self._values([self._questions.train[row] for row in rows], texts)
        return [reward for reward in total(self.rewards, values) if reward is not None]

    def _values(
        self, questions: Sequence[Question], texts: Sequence[str]
    ) -> tuple[dict[str, list[float | None]], frozenset[int]]:
        """The scores of answers to questions, by reward, and the answers for which a reward failed, by their place. What goes wrong
        with a reward is said once."""
        samples = [
            Sample(prompt_text(question.example), text, question.expected.strip(), question.columns)
            for question, text in zip(questions, texts, strict=True)
        ]
        scores = self._process.score(samples)
        by_models = scores_of(self._models, [question.example for question in questions], texts)
        failed = {name: trouble for name, (_, trouble) in by_models.items() if trouble}
        for name, trouble in (scores.troubles | failed).items():
            if (key := (name, trouble.kind == GIVEN_UP)) not in self._troubles:
                self._troubles[key] = f"Reward {name}: {trouble.sentence}."
                self._report.warn(self._troubles[key])
        lost = (index for name in failed for index, value in enumerate(by_models[name][0]) if value is None)
        return scores.values | {name: values for name, (values, _) in by_models.items()}, scores.lost.union(lost)

    @property
    def causes(self) -> str:
        """Why samples of this rank have no reward, as far as it is known, in sentences."""
        return " ".join(self._troubles.values())

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
        questions, texts = [self._questions.train[row] for row in rows], self._questions.texts(answers)
        values, lost = self._values(questions, texts)
        sums, counted = total(self.rewards, values), len(samples) - repeats
        mine = [
            Scored(
                sample, len(answers[index]), bool(answers[index]) and answers[index][-1] in ends,
                {name: of_rows[index] for name, of_rows in values.items()}, sums[index], index >= counted, index in lost,
                *((questions[index].alone, texts[index]) if with_texts else ()),
            )
            for index, sample in enumerate(samples)
        ]  # fmt: skip
        return gathered(mine)
