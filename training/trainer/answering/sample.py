"""Scores of greedy answers to a sample of the held-out rows, at evaluations during training."""

from collections.abc import Callable, Iterator
from itertools import chain
from statistics import fmean
from typing import Any, Protocol

import torch
import torch.distributed as dist
from transformers import PreTrainedTokenizerBase, TrainerState

from training.config.name_lists import listed
from training.config.run_config import RunConfig
from training.data.example import Example
from training.errors import StopRequested
from training.run_folder.events import Metrics
from training.trainer.answering.greedy import greedy
from training.trainer.answering.questions import Question, end_tokens, questions, score


class AnsweringTrainer(Protocol):
    """The members of a trainer that are used here."""

    args: Any
    model: Any
    state: TrainerState
    context: Any

    def compute_loss_context_manager(self) -> Any: ...


class SampleAnswers:
    """The held-out rows that are answered, the same on every rank."""

    def __init__(
        self, config: RunConfig, held_out: Iterator[tuple[int, Example]], tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._asked = questions(held_out, config, tokenizer, config.eval_answers) if config.eval_answers else []

    def at_evaluation(self, number: int, trainer: AnsweringTrainer) -> None:
        """Answers the rows and reports the scores, at every `eval_answers_every`-th evaluation; the first is number 1.

        Raises:
            StopRequested: a stop is requested meanwhile.
        """
        if not self._asked or number % self._config.eval_answers_every:
            return
        context, state = trainer.context, trainer.state

        def check() -> None:
            if context.stop.agreed():
                raise StopRequested

        with context.report.during("answering"), trainer.compute_loss_context_manager():
            values = self.scores(trainer.model, trainer.args.device, check)
        context.report.for_run(Metrics(step=state.global_step, values=dict(values)))
        context.trackers.log(state, values)

    def scores(self, model: Any, device: torch.device, check: Callable[[], None]) -> dict[str, float]:
        """Returns the means of the scores by name, as eval_exact_match. A collective; the ranks share the rows.

        Calls `check` before each batch.
        """
        ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
        most = -(-len(self._asked) // ranks)
        mine = self._asked[rank::ranks]
        # A rank with fewer rows repeats one, so that all take as many forward passes.
        asked = mine + self._asked[:1] * (most - len(mine))
        was_training = model.training
        model.eval()
        try:
            parts = [self._answered(model, part, device, check) for part in self._parts(asked)]
        finally:
            model.train(was_training)
        found = list(chain.from_iterable(parts))[: len(mine)]
        return _means(_gathered(found, ranks), listed(self._config.eval_metrics))

    def _parts(self, asked: list[Question]) -> Iterator[list[Question]]:
        size = self._config.micro_batch_size
        return (asked[start : start + size] for start in range(0, len(asked), size))

    def _answered(
        self, model: Any, part: list[Question], device: torch.device, check: Callable[[], None]
    ) -> list[dict[str, float]]:
        check()
        ends, padding = end_tokens(model.generation_config, self._tokenizer), self._tokenizer.pad_token_id
        prompts = [question.tokens for question in part]
        tokens = greedy(model, prompts, self._config.max_new_tokens, ends, padding, device)
        texts = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [_scored(text.strip(), question.expected.strip()) for text, question in zip(texts, part, strict=True)]


def _scored(answer: str, expected: str) -> dict[str, float]:
    return {"exact_match": float(answer == expected)} | score(answer, expected)


def _gathered(found: list[dict[str, float]], ranks: int) -> list[dict[str, float]]:
    if ranks == 1:
        return found
    parts: list[Any] = [None] * ranks
    dist.all_gather_object(parts, found)
    return [one for part in parts for one in part]


def _means(scores: list[dict[str, float]], names: tuple[str, ...]) -> dict[str, float]:
    return {f"eval_{name}": fmean(one[name] for one in scores) for name in names}
