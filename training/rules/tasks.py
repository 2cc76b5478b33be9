"""Rules on tasks and chat templates."""

from collections.abc import Iterator

from training.config.choices import Task
from training.config.machine import Machine
from training.config.name_values import OptionError, template_arguments
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule


@rule
def answer_rows_needs_generated_text(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.answer_rows and not config.task.generates:
        yield Conflict(
            ("answer_rows", "task"),
            f"Task {config.task.value} produces numbers, not text answers.",
            "Set answer_rows to 0; the evaluation reports the accuracy.",
            {"answer_rows": 0},
        )


@rule
def kto_needs_two_rows_in_a_batch(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.task is Task.KTO and config.micro_batch_size < 2:
        yield Conflict(
            ("micro_batch_size", "task"),
            "KTO compares each prompt with the answer of another row in the batch, and micro_batch_size is 1.",
            "Set micro_batch_size to 2 or more.",
            {"micro_batch_size": 2},
        )


@rule
def chat_template_arguments_are_valid(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    try:
        template_arguments(config.chat_template_kwargs)
    except OptionError as error:
        changes = {"chat_template_kwargs": error.corrected or None}
        yield Conflict(("chat_template_kwargs",), f"chat_template_kwargs {error.message}", error.fix, changes)
