"""Rules on tasks, chat templates and streaming."""

from collections.abc import Iterator

from training.chat.template import FIX, NOT_VALID, SHORT_TEXT, is_source, syntax_problem
from training.config.choices import Interval, LossOn
from training.config.machine import Machine
from training.config.name_values import OptionError, template_arguments
from training.config.run_config import NEAR_DUPLICATES, RunConfig
from training.rules.conflict import Conflict, rule


@rule
def answer_rows_needs_generated_text(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name in ("answer_rows", "eval_answers"):
        if getattr(config, name) and not config.task.traits.generates:
            yield Conflict(
                (name, "task"),
                f"Task {config.task.value} produces numbers, not text answers.",
                f"Set {name} to 0; the evaluation reports the accuracy.",
                {name: 0},
            )


@rule
def answers_during_training_exclude_sequence_parallelism(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.eval_answers and config.sequence_parallel_size > 1:
        yield Conflict(
            ("eval_answers", "sequence_parallel_size"),
            "With sequence_parallel_size each process has a part of a sequence, and an answer needs its end.",
            "Set eval_answers to 0 and answer_rows instead, which answers after training.",
            {"eval_answers": 0},
        )


@rule
def kto_needs_two_rows_in_a_batch(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.micro_batch_size < config.task.traits.least_micro_batch:
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


@rule
def chat_template_compiles(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    """A file's path is read, and replaced by its text, when the run is submitted; of long texts, too, the worker checks the syntax
    (worker/runs/checks.py)."""
    template = config.chat_template
    if not template or not is_source(template) or len(template) > SHORT_TEXT:
        return
    if problem := syntax_problem(template):
        yield Conflict(
            ("chat_template",),
            NOT_VALID.format(problem),
            FIX,
            {"chat_template": None},
        )


@rule
def turns_with_loss_exclude_loss_on_prompts(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.task.traits.selects_turns or not config.train_on_prompt:
        return
    for name, value in (("loss_on", LossOn.ALL), ("weight_field", None)):
        if getattr(config, name) != value:
            yield Conflict(
                (name, "train_on_prompt"),
                f"{name} selects the tokens of a row that carry loss, and train_on_prompt gives every token loss.",
                "Set train_on_prompt to false.",
                {"train_on_prompt": False},
            )


@rule
def loss_weights_exclude_sequence_parallelism(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.weight_field and config.task.traits.selects_turns and config.sequence_parallel_size > 1:
        yield Conflict(
            ("weight_field", "sequence_parallel_size"),
            "With sequence_parallel_size DeepSpeed computes the loss of each part of a row, without weights.",
            "Set sequence_parallel_size to 1, or clear weight_field.",
            {"sequence_parallel_size": 1},
        )


@rule
def one_field_has_one_meaning(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.loss_on is LossOn.FIELD and config.weight_field == config.loss_field and config.task.traits.selects_turns:
        yield Conflict(
            ("loss_on", "weight_field"),
            f"The field {config.weight_field} gives loss weights, and weight 0 already means no loss.",
            "Set loss_on to all.",
            {"loss_on": "all"},
            blocking=False,
        )


@rule
def streaming_needs_supervised_fine_tuning(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.streaming and not config.task.traits.streams:
        yield Conflict(
            ("streaming", "task"),
            f"Task {config.task.value} needs a tokenized data set, and streaming makes none.",
            "Set streaming to false.",
            {"streaming": False},
        )


@rule
def streaming_does_not_support_sampling(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name, fact in (
        ("stratify_by", "Streaming holds out the first rows"),
        ("group_by", "Streaming holds out the first rows"),
        ("max_samples", "Streaming does not know all rows in advance"),
    ):
        if config.streaming and getattr(config, name) not in (None, NEAR_DUPLICATES):
            yield Conflict(
                (name, "streaming"),
                f"{fact}, and {name} needs all rows.",
                f"Clear {name}"
                + (" and set data_slice or max_steps" if name == "max_samples" else "")
                + ", or set streaming to false.",
                {name: None},
            )


@rule
def streaming_reads_one_data_set(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    first, *others = config.sources
    if config.streaming and (others or first.max_rows):
        what = "several data sets" if others else "max_rows"
        yield Conflict(
            ("data", "streaming"),
            f"Streaming reads one data set from its first row on and does not support {what}.",
            "Set streaming to false, or give one data set without max_rows.",
            {"streaming": False},
        )


@rule
def a_stream_has_no_epochs(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name in ("eval_strategy", "save_strategy"):
        if config.streaming and getattr(config, name) is Interval.EPOCH:
            yield Conflict(
                (name, "streaming"),
                "Streaming reads rows without a break between epochs.",
                f"Set {name} to steps.",
                {name: "steps"},
            )
