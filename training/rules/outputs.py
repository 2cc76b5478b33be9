"""Rules on evaluation and on the results of a run."""

from collections.abc import Iterator

from training.config.choices import Method
from training.config.machine import Machine
from training.config.peft_methods import method_of
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule

CANNOT_MERGE = {Method.ADAPTION_PROMPT, Method.LILY}
"""Methods whose adapters cannot be merged, besides those with virtual tokens; as found by running each."""


@rule
def the_best_checkpoint_needs_evaluation(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.evaluates:
        return
    for name, off in (("early_stopping_patience", None), ("load_best_at_end", False)):
        if getattr(config, name):
            yield Conflict(
                (name, "eval_steps", "eval_split"),
                f"{name} needs the evaluation loss, and the run does not evaluate during training.",
                f"Set eval_steps and eval_split above 0, or {'clear' if off is None else 'turn off'} {name}.",
                {name: off},
            )


@rule
def only_adapters_can_be_merged(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.merge_adapter and not config.method.adapts:
        yield Conflict(
            ("merge_adapter", "method"),
            f"Method {config.method.value} trains no adapter that could be merged.",
            "Set merge_adapter to false; the result is a complete model.",
            {"merge_adapter": False},
        )
    elif config.merge_adapter and not can_merge(config.method):
        yield Conflict(
            ("merge_adapter", "method"),
            f"Adapters of {config.method.value} do not change the model's weights and cannot be merged into them.",
            "Set merge_adapter to false.",
            {"merge_adapter": False},
        )


@rule
def answers_need_held_out_rows(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name in ("answer_rows", "eval_answers"):
        if getattr(config, name) and not config.holds_out:
            yield Conflict(
                (name, "eval_split"),
                f"{name} needs held-out rows: eval_split is 0 and validation_data is empty.",
                f"Set eval_split above 0, set validation_data, or set {name} to 0.",
                {name: 0},
            )


@rule
def evaluation_needs_held_out_rows(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.eval_steps and not config.holds_out and "eval_steps" in config.model_fields_set:
        yield Conflict(
            ("eval_steps", "eval_split"),
            "The run evaluates nothing, since there are no held-out rows: eval_split is 0 and validation_data is empty.",
            "Set eval_split above 0.",
            {"eval_split": 0.05},
            blocking=False,
        )


def can_merge(method: Method) -> bool:
    """True if the method's adapters can be merged into the base model."""
    return method.adapts and method not in CANNOT_MERGE and not _trains_virtual_tokens(method)


def _trains_virtual_tokens(method: Method) -> bool:
    peft_method = method_of(method)
    return peft_method is not None and peft_method.prompts
