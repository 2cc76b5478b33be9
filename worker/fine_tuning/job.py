"""A fine-tuning job of OpenAI's API as the settings of a run."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from training.config.fields import parse
from training.config.run_config import RunConfig
from training.config.task import Task
from training.errors import UserError
from training.rules.optimizers import usual_rate
from worker.fine_tuning.graders import rewards_of

Values = dict[str, Any]
AUTO: Literal["auto"] = "auto"


def _count(value: Any) -> Any:
    if value == AUTO or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST):
        return value
    raise PydanticCustomError("count", "is neither auto nor a whole number from 1 to 65,536")


def _positive(value: Any) -> Any:
    if value == AUTO or (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _LARGEST):
        return value
    raise PydanticCustomError("positive", "is neither auto nor a number above 0, at most 10,000")


_MOST, _LARGEST = 65_536, 1e4
Count = Annotated[Any, PlainValidator(_count)]
Positive = Annotated[Any, PlainValidator(_positive)]
"""A number, or `auto`."""
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
_MOST_ROWS = 4
"""Rows of a micro batch at most; larger batches accumulate."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Hyperparameters(_Part):
    """Those of all methods. `auto` leaves a value to Lathe, and the answer says what it became."""

    n_epochs: Positive = AUTO
    batch_size: Count = AUTO
    learning_rate_multiplier: Positive = AUTO


class DpoHyperparameters(Hyperparameters):
    """With the strength of the penalty for moving away from the model before training."""

    beta: Positive = AUTO


class ReinforcementHyperparameters(Hyperparameters):
    """Those of reinforcement; what has no meaning here is refused unless it is auto or left out."""

    eval_interval: Count = AUTO
    compute_multiplier: Positive = AUTO
    eval_samples: Count = AUTO
    reasoning_effort: Literal["default", "low", "medium", "high"] | None = None


class Supervised(_Part):
    """Training on the answers of conversations."""

    hyperparameters: Hyperparameters = Hyperparameters()


class Dpo(_Part):
    """Training on pairs of answers."""

    hyperparameters: DpoHyperparameters = DpoHyperparameters()


class Reinforcement(_Part):
    """Training on samples that a grader scores."""

    grader: dict[str, Any] = Field(max_length=20)
    hyperparameters: ReinforcementHyperparameters = ReinforcementHyperparameters()
    response_format: dict[str, Any] | None = None


class Method(_Part):
    """The method, with an object of its name."""

    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: Supervised | None = None
    dpo: Dpo | None = None
    reinforcement: Reinforcement | None = None


class FineTuningJob(_Part):
    """The body that creates a job. `lathe` has settings of a run by name; they count instead of those that follow from the rest."""

    model: str = Field(min_length=1, max_length=4096)
    training_file: str = Field(min_length=1, max_length=200)
    validation_file: str | None = Field(None, max_length=200)
    hyperparameters: Hyperparameters | None = Field(None, description="of supervised jobs without `method`")
    method: Method | None = None
    suffix: str | None = Field(None, max_length=64)
    seed: int | None = Field(None, ge=0, le=2**31 - 1)
    integrations: list[Any] | None = Field(None, max_length=5)
    metadata: Metadata | None = None
    lathe: Values = Field({}, max_length=300)


PARAMETERS = {
    "task": "method.type",
    "model": "model",
    "init_adapter": "model",
    "data": "training_file",
    "validation_data": "validation_file",
    "epochs": "hyperparameters.n_epochs",
    "micro_batch_size": "hyperparameters.batch_size",
    "gradient_accumulation_steps": "hyperparameters.batch_size",
    "learning_rate": "hyperparameters.learning_rate_multiplier",
    "beta": "hyperparameters.beta",
    "seed": "seed",
    "name": "suffix",
    "rewards": "method.reinforcement.grader",
    "reward_code": "method.reinforcement.grader",
}
"""What a setting is called in a job, for errors."""
_TASKS: dict[str, Task] = {"supervised": Task.SFT, "dpo": Task.DPO, "reinforcement": Task.GRPO}


def settings_of(job: FineTuningJob) -> Values:
    """The settings that follow from a job, without its model and files.

    Raises:
        UserError: a parameter has no meaning here; the field is its name in the job.
    """
    method = job.method or Method(type="supervised", supervised=Supervised(hyperparameters=hyperparameters_of(job)))
    _check(job, method)
    values: Values = {"task": _TASKS[method.type].value}
    if job.suffix:
        values["name"] = job.suffix
    if job.seed is not None:
        values["seed"] = job.seed
    if job.validation_file is None:
        values["eval_split"] = 0  # all rows of the file train
    if method.reinforcement:
        values |= _of_grader(method.reinforcement)
    if twice := next((name for name in ("model", "data", "validation_data", "task") if name in job.lathe), None):
        raise UserError(f"lathe.{twice}", None, "is a parameter of the job.", f"Give it as {PARAMETERS[twice]}.")
    values |= job.lathe
    return _of_hyperparameters(hyperparameters_of(job), values) | values


def hyperparameters_of(job: FineTuningJob) -> Hyperparameters:
    """Those of the job's method, as they were sent."""
    part = getattr(job.method, job.method.type) if job.method else None
    found: Hyperparameters = (part and part.hyperparameters) or job.hyperparameters or Hyperparameters()
    return found


def resolved(job: FineTuningJob, config: RunConfig) -> Values:
    """The hyperparameters with which the run trains: none is auto."""
    given = hyperparameters_of(job)
    values: Values = {
        "n_epochs": config.epochs,
        "batch_size": config.global_batch_size // config.samples_per_prompt,
        "learning_rate_multiplier": float(f"{config.learning_rate / usual_rate(config):.3g}"),
    }
    if isinstance(given, DpoHyperparameters):
        values["beta"] = config.beta
    if isinstance(given, ReinforcementHyperparameters):
        values["eval_interval"] = config.eval_steps
    return values


def _check(job: FineTuningJob, method: Method) -> None:
    own = getattr(method, method.type)
    for name in _TASKS:
        if name != method.type and getattr(method, name) is not None:
            raise UserError(f"method.{name}", None, f"does not go with the method {method.type}.", "Leave it out.")
    if own is None and method.type == "reinforcement":
        raise UserError("method.reinforcement", None, "is missing.", "Give it with a grader.")
    if job.method and job.hyperparameters and job.hyperparameters != Hyperparameters():
        fix = f"Give them as method.{method.type}.hyperparameters."
        raise UserError("hyperparameters", None, "are given beside a method.", fix)
    if job.integrations:
        fix = 'Leave it out, and set "lathe": {"report_to": "wandb"} if the server has access (docs/trackers.md).'
        raise UserError("integrations", None, "are not sent to from here.", fix)
    if not method.reinforcement:
        return
    given, path = method.reinforcement.hyperparameters, "method.reinforcement.hyperparameters"
    if method.reinforcement.response_format:
        fix = "Leave it out, and let a grader check the form of the answer."
        raise UserError("method.reinforcement.response_format", None, "is not enforced while samples are drawn.", fix)
    if given.compute_multiplier != AUTO:
        fix = 'Leave it out, and set "lathe": {"num_generations": 16} for more samples of each prompt.'
        raise UserError(f"{path}.compute_multiplier", given.compute_multiplier, "has no counterpart.", fix)
    if given.eval_samples != AUTO:
        fix = "Leave it out: an evaluation draws one sample of each held-out prompt."
        raise UserError(f"{path}.eval_samples", given.eval_samples, "has no counterpart.", fix)
    if given.reasoning_effort not in (None, "default"):
        fix = 'Leave it out; "lathe": {"chat_template_kwargs": ...} sets what the model\'s template knows.'
        raise UserError(f"{path}.reasoning_effort", given.reasoning_effort, "depends on the model's template.", fix)


def _of_grader(method: Reinforcement) -> Values:
    entries, code = rewards_of(method.grader, "method.reinforcement.grader")
    return {"rewards": json.dumps(entries, ensure_ascii=False), **({"reward_code": code} if code else {})}


def _of_hyperparameters(given: Hyperparameters, values: Values) -> Values:
    base = parse({"model": "MODEL", "data": "DATA"} | values)
    found: Values = {}
    if given.n_epochs != AUTO:
        found["epochs"] = given.n_epochs
    samples = base.samples_per_prompt
    if given.batch_size != AUTO or samples > 1:
        rows = int(given.batch_size) if given.batch_size != AUTO else 1
        most = max(size for size in range(1, _MOST_ROWS + 1) if rows % size == 0)
        found |= {"micro_batch_size": most * samples, "gradient_accumulation_steps": rows // most}
    multiplier = 1.0 if given.learning_rate_multiplier == AUTO else float(given.learning_rate_multiplier)
    found["learning_rate"] = float(f"{usual_rate(base) * multiplier:.6g}")
    if isinstance(given, DpoHyperparameters) and given.beta != AUTO:
        found["beta"] = given.beta
    if isinstance(given, ReinforcementHyperparameters) and given.eval_interval != AUTO:
        found["eval_steps"] = given.eval_interval
    return found
