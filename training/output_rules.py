"""Rules of evaluation and of what a run leaves behind; no torch."""

from collections.abc import Iterator

from training.config import Interval, Method, RunConfig
from training.methods import methods
from training.rules import Conflict, Machine, rule

CANNOT_MERGE = {Method.ADAPTION_PROMPT, Method.LILY}
"""Methods whose parts cannot be merged into weights, besides those that learn virtual tokens. Found by trying each."""


@rule
def the_best_is_found_by_evaluating(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.evaluates:
        return
    for name, off in (("early_stopping_patience", None), ("load_best_at_end", False)):
        if getattr(config, name):
            yield Conflict(
                (name, "eval_steps", "eval_split"),
                f"{name} goes by the evaluation loss, and nothing is evaluated while training.",
                f"Set eval_steps and eval_split above 0, or leave {name} {'empty' if off is None else 'off'}.",
                {name: off},
            )


@rule
def only_an_adapter_is_merged(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.merge_adapter and not config.method.adapts:
        yield Conflict(
            ("merge_adapter", "method"),
            f"Method {config.method.value} trains the model itself: there is no adapter to merge.",
            "Set merge_adapter to false; the result is a whole model anyway.",
            {"merge_adapter": False},
        )
    elif config.merge_adapter and (config.method in CANNOT_MERGE or _learns_tokens(config.method)):
        yield Conflict(
            ("merge_adapter", "method"),
            f"What {config.method.value} trains is no change of the model's weights, and cannot be merged into them.",
            "Set merge_adapter to false.",
            {"merge_adapter": False},
        )


@rule
def a_stream_has_no_epochs(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name in ("eval_strategy", "save_strategy"):
        if config.streaming and getattr(config, name) is Interval.EPOCH:
            yield Conflict(
                (name, "streaming"),
                "A stream is read without a break between epochs.",
                f"Set {name} to steps.",
                {name: "steps"},
            )


@rule
def answers_need_held_out_rows(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.answer_rows and not config.holds_out:
        yield Conflict(
            ("answer_rows", "eval_split"),
            "There are no held-out rows to answer: eval_split is 0 and validation_data is empty.",
            "Set eval_split above 0, give validation_data, or set answer_rows to 0.",
            {"answer_rows": 0},
        )


@rule
def evaluation_needs_held_out_rows(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.eval_steps and not config.holds_out and "eval_steps" in config.model_fields_set:
        yield Conflict(
            ("eval_steps", "eval_split"),
            "There are no held-out rows to evaluate: eval_split is 0 and validation_data is empty.",
            "Nothing will be evaluated; set eval_split above 0 to see the evaluation loss.",
            {"eval_split": 0.05},
            blocking=False,
        )


def _learns_tokens(method: Method) -> bool:
    known = methods().get(method.value)
    return known is not None and known.prompts
