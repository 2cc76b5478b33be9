"""How a row is rendered, and the loss weight of each of its answers: the product of the row's and the turn's, 0 without loss."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from training.config.choices import LossOn, Reasoning
from training.config.name_values import template_arguments
from training.config.run_config import RunConfig
from training.data.example import Example, Message, Row, kind_of
from training.errors import DataError

TRAIN = "train"  # axolotl's field of a message
MARKS = (TRAIN, "training", "weight", "loss_weight", "loss", "trainable")
"""The fields with which data for other programs says whether, or how much, a message carries loss."""


@dataclass(frozen=True)
class ChatSettings:
    """The rendering of a run's rows. `arguments` is `chat_template_kwargs` as text; `template` replaces the tokenizer's."""

    template: str | None = None
    arguments: str | None = None
    reasoning: Reasoning = Reasoning.TEMPLATE
    loss_on: LossOn = LossOn.ALL
    loss_field: str = TRAIN
    weight_field: str | None = None

    @classmethod
    def of(cls, config: RunConfig) -> "ChatSettings":
        """Those of a run. Which turns carry loss applies to supervised fine-tuning only; other tasks define it themselves."""
        rendering = cls(config.chat_template, config.chat_template_kwargs, config.reasoning_history)
        if not config.task.traits.selects_turns:
            return rendering
        field = config.loss_field if config.loss_on is LossOn.FIELD else TRAIN
        return cls(
            **{**vars(rendering), "loss_on": config.loss_on, "loss_field": field, "weight_field": config.weight_field}
        )

    @property
    def key(self) -> str:
        """The settings as text, for the name of a token store; empty for the defaults."""
        return "" if self == ChatSettings() else json.dumps(asdict(self), sort_keys=True)

    @property
    def template_arguments(self) -> Mapping[str, Any]:
        """The arguments of the chat template. Raises OptionError as `training.config.name_values.template_arguments`."""
        return template_arguments(self.arguments)

    @property
    def own_fields(self) -> tuple[str, ...]:
        """The fields of a message that Lathe reads and the template does not get."""
        fields = (self.loss_field if self.loss_on is LossOn.FIELD else None, self.weight_field)
        return tuple(field for field in fields if field)


DEFAULT = ChatSettings()
"""The model's own template, and loss on every assistant turn."""


_LARGEST = 1e6
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def with_row_weight(example: Example, row: Row, settings: ChatSettings) -> Example:
    """The example with the weight of its row: 0 if the row's own loss field says that it carries no loss. Raises DataError if the
    row's weight or loss field has a wrong value."""
    weight = _weight(row, settings.weight_field, settings.weight_field or "")
    if settings.loss_on is LossOn.FIELD and not _carries_loss(row, settings.loss_field, settings.loss_field):
        weight = 0.0
    return replace(example, weight=weight) if weight != 1 else example


def answer_weights(messages: list[Message], settings: ChatSettings, row_weight: float = 1.0) -> list[float]:
    """The loss weight of each assistant message, in order. Raises DataError if a message's weight or loss field has a wrong
    value."""
    answers = [(index, message) for index, message in enumerate(messages) if message["role"] == "assistant"]
    weights = []
    for place, (index, message) in enumerate(answers, start=1):
        where = f"messages[{index}]."
        weight = row_weight * _weight(message, settings.weight_field, f"{where}{settings.weight_field}")
        skipped = settings.loss_on is LossOn.LAST and place < len(answers)
        if settings.loss_on is LossOn.FIELD:
            skipped = not _carries_loss(message, settings.loss_field, f"{where}{settings.loss_field}")
        weights.append(0.0 if skipped else weight)
    return weights


def without_fields(messages: list[Message], settings: ChatSettings) -> list[Message]:
    """The messages without the fields that only Lathe reads."""
    own = settings.own_fields
    if not own or not any(field in message for message in messages for field in own):
        return messages
    return [{key: value for key, value in message.items() if key not in own} for message in messages]


def _weight(values: Row, field: str | None, place: str) -> float:
    value = values.get(field) if field else None
    if value is None:
        return 1.0
    number = _number(value)
    if not 0 <= number <= _LARGEST:
        message = f"is {_shown(value)}, not a loss weight."
        raise DataError(message, "Write a number from 0 (no loss) to 1e6, or leave it out (1).", field=place)
    return number


def _carries_loss(values: Row, field: str, place: str) -> bool:
    value = values.get(field)
    if value is None or isinstance(value, bool):
        return value is not False
    known = _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    if known is not None:
        return known
    number = _number(value)
    if not 0 <= number <= _LARGEST:
        fix = "Write true or false, or a number (0: no loss)."
        raise DataError(f"is {_shown(value)}, which does not say whether the turn carries loss.", fix, field=place)
    return number > 0


def _number(value: Any) -> float:
    """The value as a number; NaN if it is none."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, (str, int, float)) else kind_of(value)
