"""Scores conversations by a reward model, rendered, tokenized and truncated as in its own run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from training.chat.rendering_settings import ChatSettings
from training.config.choices import Precision, Reasoning
from training.config.run_config import RunConfig
from training.config.task import StoredText, Task
from training.data.example import Example, asked
from training.errors import DataError, UserError
from training.model_info.config_json import local_folder
from training.model_info.reward_model import FIX, check_labels, check_reward_model
from training.models.teacher import load_frozen, refused_as, tokenizer_of
from training.rewards.built_in import MODEL
from training.rewards.reward_batch import Trouble
from training.rewards.reward_model import RewardModel
from training.rewards.reward_options import reward_model_of
from training.rewards.rewards import Reward
from training.run_folder.paths import RECORD_FILE
from training.run_folder.record import read_record
from training.tokens.encoding import Encoder
from training.tokens.parts import PartRenderer

Scored = tuple[list[float | None], Trouble | None]
"""A score for each conversation, and what went wrong with those that have none."""


class RewardScorer:
    """A reward model on one device. `config` is that of the run beside which it scores: its attention kernels and, for an adapter
    that names no base model, its model."""

    def __init__(
        self, option: RewardModel, config: RunConfig, precision: Precision, device: torch.device, rows: int
    ) -> None:
        """Loads the model in `precision`; it scores `rows` conversations at once.

        Raises:
            UserError: it cannot be loaded, or is no reward model; the field is rewards.
        """
        name, self._device, self._rows = option.name, device, rows
        settings = _settings(Path(name))
        chat = ChatSettings(
            settings.get("chat_template"),
            settings.get("chat_template_kwargs"),
            Reasoning(settings.get("reasoning_history", Reasoning.TEMPLATE)),
        )
        self._longest = option.max_length or settings.get("max_length", RunConfig.model_fields["max_length"].default)
        with refused_as("rewards", name, FIX):
            _check(name)
            tokenizer = tokenizer_of(config, name, chat.template)
            self._model = load_frozen(config, name, option.quantization, precision, len(tokenizer), device, Task.REWARD)
        # The score is that of the last token that is not this one. Without it, that of the last token.
        padding = tokenizer.pad_token_id, self._model.config.get_text_config().pad_token_id
        self._padding = next((token for token in padding if token is not None), None)
        self._renderer, self._encoder = PartRenderer(tokenizer, StoredText.CHOSEN, chat), Encoder(tokenizer)

    def score(self, conversations: Sequence[Example]) -> Scored:
        """The score of each conversation, which ends with the answer; None if the template cannot render it, or the score is not
        finite."""
        tokens: list[list[int]] = []
        failed: list[str] = []
        for conversation in conversations:
            try:
                tokens.append(self._encoder.whole(self._renderer.render(conversation))[: self._longest])
            except DataError as error:
                tokens.append([])
                failed.append(error.message)
        scores: list[float | None] = [None] * len(tokens)
        order = sorted((index for index, row in enumerate(tokens) if row), key=lambda index: len(tokens[index]))
        for start in range(0, len(order), self._rows):
            part = order[start : start + self._rows]
            for index, value in zip(part, self._forward([tokens[index] for index in part]), strict=True):
                scores[index] = value if math.isfinite(value) else None
        failed += ["the score is not a finite number"] * (scores.count(None) - len(failed))
        return scores, Trouble(len(failed), failed[0], "reward model") if failed else None

    @torch.inference_mode()
    def _forward(self, rows: list[list[int]]) -> list[float]:
        """The scores of rows of tokens, padded on the right."""
        used, padding = {token for row in rows for token in row}, self._padding
        if padding is None:
            padding = next(token for token in range(len(used) + 1) if token not in used)
        self._model.config.get_text_config().pad_token_id = padding
        ids = torch.full((len(rows), max(map(len, rows))), padding)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : len(row)], mask[index, : len(row)] = torch.tensor(row), 1
        scores = self._model(input_ids=ids.to(self._device), attention_mask=mask.to(self._device)).logits
        return [float(score) for score in scores[:, 0]]


def load_scorers(
    rewards: Sequence[Reward], config: RunConfig, precision: Precision, device: torch.device, rows: int
) -> dict[str, RewardScorer]:
    """The reward models among rewards, by the name of the reward.

    Raises:
        UserError: as `RewardScorer`.
    """
    models = {reward.name: reward_model_of(reward.options) for reward in rewards if reward.kind == MODEL}
    return {name: RewardScorer(option, config, precision, device, rows) for name, option in models.items()}


def scores_of(
    scorers: Mapping[str, RewardScorer], examples: Sequence[Example], answers: Sequence[str]
) -> dict[str, Scored]:
    """The scores of answers to the rows of `examples`, by the name of the reward."""
    conversations = [conversation(example, answer) for example, answer in zip(examples, answers, strict=True)]
    return {name: scorer.score(conversations) for name, scorer in scorers.items()}


def conversation(example: Example, answer: str) -> Example:
    """A row up to its last answer, with another answer in the place of that. A text keeps the white space before its own answer."""
    if example.messages is None:
        space = example.answer[: len(example.answer) - len(example.answer.lstrip())]
        return replace(example, answer=space + answer, rejected=None, answered=True)
    turn = {"role": "assistant", "content": answer}
    return replace(example, messages=[*asked(example), turn], rejected=None, answer_turns=1, answered=True)


def _settings(folder: Path) -> dict[str, Any]:
    """The settings of the run whose result is in a folder; empty for another folder, or a hub id."""
    return dict(read_record(folder, "rewards")["settings"]) if (folder / RECORD_FILE).is_file() else {}


def _check(name: str) -> None:
    if folder := local_folder(name):
        check_reward_model(folder, name)
        return
    try:
        values = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError("rewards", name, f"has no model that Lathe can load: {error}", FIX) from error
    check_labels(values.architectures or [], values.num_labels, name)
