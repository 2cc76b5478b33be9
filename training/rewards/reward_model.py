"""A reward model as a reward: a model with one score for a conversation, such as the result of a run of task reward. No torch."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from training.config.choices import Quantization


class RewardModel(BaseModel):
    """A reward model: the result of the run `run`, or `model`, which is a folder or a hub id.

    A conversation has at most `max_length` tokens, by default as many as in the model's run. `quantization` is the format of the
    model's weights.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str = Field("", max_length=200)
    model: str = Field("", max_length=2000)
    quantization: Quantization = Quantization.NONE
    max_length: int | None = Field(None, ge=8, le=1_048_576)

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if bool(self.run.strip()) == bool(self.model.strip()):
            raise ValueError("needs either run or model")
        return self

    @property
    def name(self) -> str:
        """The id of the run, the folder or the hub id."""
        return self.run.strip() or self.model.strip()
