"""Held-out rows as questions, greedy answers by the forward pass alone (which works on every strategy), and their scores."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from peft import PeftModel
from transformers import GenerationConfig, PreTrainedTokenizerBase

from training.batches.layout import base_of, evaluating
from training.chat.rendering_settings import ChatSettings
from training.config.choices import Task
from training.config.name_lists import listed
from training.config.run_config import RunConfig
from training.data.example import Example
from training.errors import StopRequested
from training.ranks.distributed import reduce_over_ranks
from training.run_folder.events import Metrics
from training.tokens.encoding import Encoder
from training.tokens.parts import PartRenderer, StoredText
from training.tokens.rendering import Renderer

if TYPE_CHECKING:
    from training.trainer.reporting_trainer import ReportingTrainer

_WORD = re.compile(r"[^\W_]+")  # of any script; for Latin letters the same words as ROUGE's own tokenizer
_ROUGE = ("rouge1", "rouge2", "rougeL")  # rougeLsum needs a sentence splitter, which is a download
SCORES = ("f1", *_ROUGE)


@dataclass(frozen=True)
class Question:
    """A held-out row: its index in the file, the prompt as text and tokens, the expected answer, and columns that rewards need."""

    row: int
    prompt: str
    tokens: list[int]
    expected: str
    columns: dict[str, Any] = field(default_factory=dict)


def questions(
    examples: Iterator[tuple[int, Example]], config: RunConfig, tokenizer: PreTrainedTokenizerBase, most: int
) -> list[Question]:
    """Returns the first `most` rows that have a prompt, with the same prompt tokens as in training."""
    result: list[Question] = []
    chat = ChatSettings.of(config)
    renderer, encoder = Renderer(tokenizer, chat), Encoder(tokenizer)
    source = PartRenderer(tokenizer, StoredText.SOURCE, chat) if config.task is Task.SEQ2SEQ else None
    for row, example in examples:
        prompt, expected = renderer.question(example)
        if prompt:
            tokens = encoder.whole(source.render(example)) if source else encoder.prompt(renderer.last_turn(example))
            result.append(Question(row, prompt, tokens, expected))
        if len(result) == most:
            break
    return result


def score(answer: str, expected: str) -> dict[str, float]:
    """Returns F1 and the F-measures of ROUGE-1, -2 and -L of an answer, by name."""
    from torchmetrics.functional.text import rouge_score, squad

    target = {"answers": {"answer_start": [0], "text": [expected]}, "id": "0"}
    f1 = float(squad([{"prediction_text": answer, "id": "0"}], [target])["f1"]) / 100
    rouge = rouge_score(answer, expected, tokenizer=_WORD.findall, normalizer=str.lower, rouge_keys=_ROUGE)
    return {"f1": f1} | {name: float(rouge[f"{name}_fmeasure"]) for name in _ROUGE}


def end_tokens(generation: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the tokens that end an answer of the model with this generation configuration."""
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return sorted({*configured_ends(generation), *own})


def configured_ends(generation: GenerationConfig) -> list[int]:
    """Returns the end tokens that a generation configuration names: one, several or none."""
    ends = generation.eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


@torch.no_grad()
def greedy(
    model: Any, prompts: Sequence[Sequence[int]], longest: int, ends: Sequence[int], padding: int, device: torch.device
) -> list[list[int]]:
    """Returns the most likely tokens after each prompt, up to an end token, which is omitted, or `longest`.

    A collective: each rank calls it with as many prompts, and all take as many forward passes, since sharded weights are gathered
    in each. `generate` calls modules inside the model, whose root then does not gather its own weights (FSDP). `device` is that of
    the forward pass: offloaded weights are elsewhere.
    """
    inputs = _Inputs(model, prompts, padding, device)
    answers = torch.empty(len(prompts), 0, dtype=torch.long, device=device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    stops = torch.tensor(list(ends), device=device)
    for _ in range(longest):
        logits = inputs.forward(answers)
        token = torch.where(ended, padding, logits.argmax(dim=-1))
        ended |= torch.isin(token, stops)
        answers = torch.cat([answers, token[:, None]], dim=1)
        if reduce_over_ranks(ended.all().to(torch.int32), dist.ReduceOp.MIN):
            break
    return [list(takewhile(lambda token: token not in ends, row)) for row in answers.tolist()]


class _Inputs:
    """The arguments of the next forward pass. Past keys and values are kept where the model returns them."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], padding: int, device: torch.device) -> None:
        self._model, width = model, max(map(len, prompts))
        base = base_of(model)
        self._known = inspect.signature(base.forward).parameters
        self._start: Any = base.config.decoder_start_token_id if base.config.is_encoder_decoder else None
        self._virtual = isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning
        rows = [[padding] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        seen = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        self._ids = torch.tensor(rows, device=device)
        self._mask = torch.tensor(seen, device=device)
        self._past: Any = None
        self._encoded: Any = None

    def forward(self, answers: torch.Tensor) -> torch.Tensor:
        """Returns the logits of the next token, of shape (rows, vocabulary)."""
        output = self._encoder_decoder(answers) if self._start is not None else self._decoder(answers)
        return output.logits[:, -1].float()  # type: ignore[no-any-return]

    def _decoder(self, answers: torch.Tensor) -> Any:
        mask = torch.cat([self._mask, torch.ones_like(answers)], dim=1)
        ids = torch.cat([self._ids, answers], dim=1)
        arguments: dict[str, Any] = {"attention_mask": mask, "use_cache": not self._virtual}
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        if self._past is not None:
            ids, positions = ids[:, -1:], positions[:, -1:]
            arguments["past_key_values"] = self._past
        if "position_ids" in self._known and not self._virtual:
            arguments["position_ids"] = positions
        if "logits_to_keep" in self._known:
            arguments["logits_to_keep"] = 1
        output = self._model(input_ids=ids, **arguments)
        self._past = None if self._virtual else getattr(output, "past_key_values", None)
        return output

    def _encoder_decoder(self, answers: torch.Tensor) -> Any:
        starts = torch.full((len(answers), 1), self._start, device=answers.device)
        read = (
            {"input_ids": self._ids} if self._encoded is None or self._virtual else {"encoder_outputs": self._encoded}
        )
        output = self._model(
            **read, attention_mask=self._mask, decoder_input_ids=torch.cat([starts, answers], dim=1), use_cache=False
        )
        self._encoded = (output.encoder_last_hidden_state,)
        return output


class SampleAnswers:
    """The held-out rows that are answered, the same on every rank."""

    def __init__(
        self, config: RunConfig, held_out: Iterator[tuple[int, Example]], tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._asked = questions(held_out, config, tokenizer, config.eval_answers) if config.eval_answers else []

    def at_evaluation(self, number: int, trainer: "ReportingTrainer") -> None:
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
        mine, most = self._asked[rank::ranks], -(-len(self._asked) // ranks)
        # A rank with fewer rows repeats one, so that all take as many forward passes.
        asked, size = mine + self._asked[:1] * (most - len(mine)), self._config.micro_batch_size
        scores: list[dict[str, float]] = []
        with evaluating(model):
            for start in range(0, most, size):
                check()
                scores += self._answered(model, asked[start : start + size], device)
        every: list[Any] = [scores[: len(mine)]] * ranks
        if ranks > 1:
            dist.all_gather_object(every, scores[: len(mine)])
        names = listed(self._config.eval_metrics)
        return {f"eval_{name}": fmean(row[name] for part in every for row in part) for name in names}

    def _answered(self, model: Any, part: list[Question], device: torch.device) -> list[dict[str, float]]:
        """The scores of the answers to some questions."""
        ends, padding = end_tokens(model.generation_config, self._tokenizer), self._tokenizer.pad_token_id
        prompts = [question.tokens for question in part]
        tokens = greedy(model, prompts, self._config.max_new_tokens, ends, padding, device)
        texts = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        pairs = [(text.strip(), question.expected.strip()) for text, question in zip(texts, part, strict=True)]
        return [{"exact_match": float(answer == expected)} | score(answer, expected) for answer, expected in pairs]
