"""The settings that decide how a row is rendered and which of its turns carry loss."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from training.config.choices import LossOn, Reasoning, Task
from training.config.name_values import template_arguments
from training.config.run_config import RunConfig

TRAIN = "train"  # axolotl's field of a message


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
        if config.task is not Task.SFT:
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
        """The arguments of the chat template.

        Raises:
            OptionError: as `training.config.name_values.template_arguments`.
        """
        return template_arguments(self.arguments)

    @property
    def own_fields(self) -> tuple[str, ...]:
        """The fields of a message that Lathe reads and the template does not get."""
        fields = (self.loss_field if self.loss_on is LossOn.FIELD else None, self.weight_field)
        return tuple(field for field in fields if field)


DEFAULT = ChatSettings()
"""The model's own template, and loss on every assistant turn."""
