"""Rules on a task that trains on samples of the model itself."""

from collections.abc import Iterator

from training.config.choices import BatchOrder, Packing, PolicyLoss
from training.config.fields import settings
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.config.vllm_limits import refusal_of
from training.errors import UserError
from training.rewards.rewards import rewards_of
from training.rules.conflict import Conflict, rule


@rule
def rewards_are_known(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    """The path of a file of code is read, and replaced by its text, when the run is submitted."""
    if not config.task.traits.rewards_samples or (config.reward_code and "\n" not in config.reward_code):
        return
    if not config.rewards.strip():
        fix = "Set rewards to exact_match, or to a function of reward_code."
        yield Conflict(("rewards", "task"), "The task grpo learns from rewards, and rewards is empty.", fix, {})
        return
    try:
        rewards_of(config)
    except UserError as error:
        field, value = error.problem.field, error.problem.value
        named = field if value is None else f"{value!r} in {field}"
        yield Conflict((field,), f"{named} {error.message}", error.fix, {})


@rule
def distillation_needs_a_teacher(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.task.traits.has_teacher and not config.teacher:
        reason = "The task distill learns the probabilities of a teacher, and teacher is empty."
        fix = "Set teacher to a model folder, a hub id, or the id of a run."
        yield Conflict(("teacher", "task"), reason, fix, {})


@rule
def groups_fill_the_global_batch(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    samples, size = config.samples_per_prompt, config.global_batch_size
    if not config.task.traits.samples or size % samples == 0:
        return
    per_micro_batch = config.num_processes * config.gradient_accumulation_steps
    micro = next(
        micro for micro in range(config.micro_batch_size, 2 * samples * size) if micro * per_micro_batch % samples == 0
    )
    yield Conflict(
        ("num_generations", "micro_batch_size"),
        f"A step has {size} samples (micro batch x accumulation x processes), which are no whole groups of {samples}.",
        f"Set micro_batch_size to {micro}, or num_generations to a divisor of {size}.",
        {"micro_batch_size": micro},
    )


@rule
def samples_are_padded_in_random_order(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.task.traits.samples and config.packing is Packing.PACKED:
        reason = "The length of a sample is not known before it is drawn, so that rows cannot be packed."
        yield Conflict(("packing", "task"), reason, "Set packing to auto.", {"packing": "auto"})
    if config.task.traits.samples and config.batch_order is BatchOrder.BY_LENGTH:
        reason = "The length of a sample is not known before it is drawn, so that batches cannot be ordered by it."
        yield Conflict(("batch_order", "task"), reason, "Set batch_order to shuffled.", {"batch_order": "shuffled"})


@rule
def samples_need_whole_sequences(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.task.traits.samples and config.sequence_parallel_size > 1:
        reason = "With sequence_parallel_size each process has a part of a sequence, and a sample needs its end."
        yield Conflict(("sequence_parallel_size", "task"), reason, "Set it to 1.", {"sequence_parallel_size": 1})


@rule
def vllm_loads_what_is_trained(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.draws_with_vllm and (reason := refusal_of(config)):
        message, fix = f"vLLM cannot draw samples: {reason}.", "Set generation to model."
        yield Conflict(("generation", "method"), message, fix, {"generation": "model"})


@rule
def the_clip_of_cispo_is_a_ratio(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.task.traits.rewards_samples and config.policy_loss is PolicyLoss.CISPO and config.clip_high < 1:
        yield Conflict(
            ("clip_high", "policy_loss"),
            f"cispo weights each token by the ratio of new to old probability, at most clip_high, and {config.clip_high:g} "
            "is below the ratio of an unchanged model, 1.",
            "Set clip_high to 5.",
            {"clip_high": 5.0},
        )


@rule
def good_samples_are_not_clipped_sooner(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if (
        config.task.traits.rewards_samples
        and config.clip_high < config.clip_low
        and config.policy_loss is not PolicyLoss.CISPO
    ):
        yield Conflict(
            ("clip_high", "clip_low"),
            "clip_high is below clip_low: good samples are clipped sooner than bad ones.",
            "Set clip_high to clip_low or more.",
            {"clip_high": config.clip_low},
            blocking=False,
        )


@rule
def a_run_stops_only_after_samples(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.task.traits.samples and config.stop_after_baseline and not config.baseline_prompts:
        yield Conflict(
            ("stop_after_baseline", "baseline_prompts"),
            "stop_after_baseline waits for samples of the untrained model, and baseline_prompts is 0.",
            "Set baseline_prompts to 16.",
            {"baseline_prompts": 16},
        )


@rule
def clipping_needs_several_steps_on_the_same_samples(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.task.traits.rewards_samples or config.iterations > 1 or config.policy_loss is PolicyLoss.CISPO:
        return
    for name in ("clip_low", "clip_high"):
        if getattr(config, name) != (default := settings()[name].default):
            yield Conflict(
                (name, "num_iterations"),
                f"{name} limits nothing: with num_iterations 1 the ratio of new to old probability is always 1.",
                "Set num_iterations to 2 or more, or clear it.",
                {name: default},
                blocking=False,
            )
