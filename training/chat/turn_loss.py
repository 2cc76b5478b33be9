"""The loss weight of each answer of a row: the product of its row's and its turn's weight, 0 for a turn without loss."""

import math
from dataclasses import replace
from typing import Any

from training.chat.settings import ChatSettings
from training.config.choices import LossOn
from training.data.example import Example, Message, Row, kind_of
from training.errors import DataError

_LARGEST = 1e6
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def with_row_weight(example: Example, row: Row, settings: ChatSettings) -> Example:
    """The example with the weight of its row: 0 if the row's own loss field says that it carries no loss.

    Raises:
        DataError: the row's weight or loss field has a wrong value.
    """
    weight = _weight(row, settings.weight_field, settings.weight_field or "")
    if settings.loss_on is LossOn.FIELD and not _carries_loss(row, settings.loss_field, settings.loss_field):
        weight = 0.0
    return replace(example, weight=weight) if weight != 1 else example


def answer_weights(messages: list[Message], settings: ChatSettings, row_weight: float = 1.0) -> list[float]:
    """The loss weight of each assistant message, in order.

    Raises:
        DataError: a message's weight or loss field has a wrong value.
    """
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
