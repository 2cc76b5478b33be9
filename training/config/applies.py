"""The conditions under which settings have an effect, for the form, the rules and docs/configuration.md. No torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.config.choices import EngineName, Generation, Interval, LossOn, Method, Quantization, Scheduler, Strategy
from training.config.data_sets import has_weights
from training.config.optimizer_name import OptimizerName
from training.config.peft_methods import method_of, methods
from training.config.run_config import RunConfig
from training.config.task import Task

Values = Mapping[str, Any]
"""Values by setting: as typed in the form, or of a configuration as JSON."""


@dataclass(frozen=True)
class Applies:
    """`when` is True for values with which the setting has an effect; `words` describe them; `decides` is the deciding setting.

    Of several conditions that all must hold, `parts` are these.
    """

    decides: str
    words: str
    when: Callable[[Values], bool]
    parts: tuple["Applies", ...] = ()

    def decider(self, values: Values) -> str:
        """The setting whose value takes the effect."""
        return next((part.decides for part in self.parts if not part.when(values)), self.decides)


def applies(name: str, values: Values) -> bool:
    """True if the setting has an effect with these values."""
    return name not in APPLIES or APPLIES[name].when(values)


def _to(setting: str, *choices: str) -> Applies:
    return Applies(setting, f"{setting} {_listed(choices, 'or')}", lambda values: values.get(setting) in choices)


def _to_all_but(setting: str, *choices: str) -> Applies:
    words = f"every {setting} except {_listed(choices, 'and')}"
    return Applies(setting, words, lambda values: values.get(setting) not in choices)


def _of(trait: str) -> Applies:
    """To the tasks of which a trait holds."""
    return _to("task", *(task for task in Task if getattr(task.traits, trait)))


def _to_runs_with(setting: str) -> Applies:
    return Applies(setting, f"runs with {setting}", lambda values: _is_given(values, setting))


def _to_runs_without(setting: str) -> Applies:
    return Applies(setting, f"runs without {setting}", lambda values: not _is_given(values, setting))


def _both(first: Applies, second: Applies) -> Applies:
    def when(values: Values) -> bool:
        return first.when(values) and second.when(values)

    return Applies(first.decides, f"{first.words}, and {second.words}", when, (first, second))


def _is_given(values: Values, setting: str) -> bool:
    """True unless it is empty or 0, as a number or as text of the form."""
    return str(values.get(setting) or "0").strip() != "0"


def _is_4bit(values: Values) -> bool:
    implied = values.get("method") == Method.QLORA and values.get("quantization") == Quantization.NONE
    return _adapters.when(values) and (implied or values.get("quantization") == Quantization.NF4)


def _to_methods(attribute: str, begin: str, full: Callable[[Values], bool]) -> Applies:
    """To PEFT's methods whose `attribute` is true in the catalogue, and to full where it says so."""
    without = _listed([name for name, known in methods().items() if not getattr(known, attribute)], "and")

    def when(values: Values) -> bool:
        known = method_of(str(values.get("method")))
        return getattr(known, attribute) if known else full(values)

    return Applies("method", f"{begin} {without}", when)


def _listed(names: Sequence[str], last: str) -> str:
    """The names as text: "a", "a or b", "a, b or c"."""
    return f" {last} ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


_SETTINGS = RunConfig.model_fields
_lora = _to("method", Method.LORA, Method.QLORA)
_adapters = _to_all_but("method", Method.FULL)
_answers = _to_all_but("task", *(task for task in Task if not task.traits.generates))
_decoders = _to_all_but("task", *(task for task in Task if task.traits.has_encoder))
_vllm = _to("generation", Generation.VLLM)
_zero3 = _to("strategy", Strategy.ZERO3)
_sharded_zero = _to("strategy", Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3)
_mixtures = Applies("data", "several data sets with weights", lambda values: has_weights(values.get("data")))
_plateau = _to("lr_scheduler", Scheduler.REDUCE_ON_PLATEAU)
_moments = _to_all_but("optimizer", *(name for name in OptimizerName if not name.traits.betas))

# trl turns all dropout off for these tasks: their losses compare two passes.
_with_dropout = _to_all_but("task", *(task for task in Task if task.traits.is_preference))

SAMPLING = ("max_completion_length", "temperature", "baseline_prompts", "generation", "stop_after_baseline")
"""Settings of tasks that train on samples of the model itself."""
REWARDS = (
    "rewards",
    "reward_code",
    "num_generations",
    "num_iterations",
    "policy_loss",
    "importance_sampling_level",
    "scale_rewards",
    "clip_low",
    "clip_high",
    "kl_coefficient",
)
"""Settings of the task that learns from rewards."""

APPLIES: dict[str, Applies] = {
    "loss_on": _of("selects_turns"),
    "loss_field": _to("loss_on", LossOn.FIELD),
    "weight_field": _of("selects_turns"),
    "train_on_prompt": _of("selects_turns"),
    "streaming": _of("streams"),
    "mix_by": _mixtures,
    "mix_until": _mixtures,
    "max_target_length": _of("has_encoder"),
    "neftune_noise_alpha": _decoders,  # an encoder has embeddings of its own, which transformers adds no noise to
    "beta": _of("has_beta"),
    "dpo_loss": _to("task", Task.DPO),
    "desirable_weight": _of("labels_answers"),
    "undesirable_weight": _of("labels_answers"),
    **dict.fromkeys(SAMPLING, _of("samples")),
    "vllm_url": _vllm,
    **dict.fromkeys(("vllm_memory", "vllm_sleep"), _both(_vllm, _to_runs_without("vllm_url"))),
    **dict.fromkeys(REWARDS, _of("rewards_samples")),
    **dict.fromkeys(("teacher", "teacher_quantization", "jsd_coefficient"), _of("has_teacher")),
    "answer_rows": _answers,
    "eval_answers": _answers,
    "eval_answers_every": _both(_answers, _to_runs_with("eval_answers")),
    "eval_metrics": _both(_answers, _to_runs_with("eval_answers")),
    "lora_r": _lora,
    "lora_alpha": _lora,
    "lora_dropout": _both(_lora, _with_dropout),
    "target_modules": _to_methods("targets", "every method except full,", lambda _: False),
    "use_rslora": _lora,
    "use_dora": _lora,
    "lora_init": _lora,
    "loraplus_lr_ratio": _lora,
    "method_options": _adapters,
    "modules_to_save": _to_methods(
        "saves_modules",
        "method full with trainable_layers, and every method except",
        lambda values: bool(values.get("trainable_layers")),
    ),
    "trainable_layers": _to("method", Method.FULL),
    "quantization": _adapters,
    "double_quantization": Applies("quantization", "quantization 4bit", _is_4bit),
    "num_processes": _to_all_but("strategy", Strategy.SINGLE),
    "num_machines": _to_all_but("strategy", Strategy.SINGLE),
    "min_machines": Applies(
        "num_machines", "num_machines above 1", lambda values: str(values.get("num_machines") or "1").strip() != "1"
    ),
    **{engine.options: _to("engine", EngineName.AUTO, engine) for engine in EngineName if engine.options in _SETTINGS},
    "offload_optimizer": _sharded_zero,
    "offload_param": _to("strategy", Strategy.ZERO3, Strategy.FSDP),
    "nvme_path": Applies(
        "offload_param",
        "offload_optimizer or offload_param nvme",
        lambda values: "nvme" in (values.get("offload_param"), values.get("offload_optimizer")),
    ),
    "sequence_parallel_size": _sharded_zero,
    "deepspeed_config": _to("strategy", Strategy.ZERO0, Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3),
    "zero_quantized_weights": _zero3,
    "zero_quantized_gradients": _zero3,
    "zero_hpz_partition_size": _zero3,
    "zero_quantized_nontrainable_weights": _zero3,
    "eval_split": Applies(
        "validation_data", "runs without validation_data", lambda values: not values.get("validation_data")
    ),
    "chunked_loss": _of("chunks_loss"),
    "optimizer_in_backward": _to("method", Method.FULL),
    "merge_adapter": _adapters,
    "push_private": _to_runs_with("push_to_hub"),
    "report_project": _to_runs_with("report_to"),
    "eval_steps": _to("eval_strategy", Interval.STEPS),
    "save_steps": _to("save_strategy", Interval.STEPS),
    "early_stopping_threshold": _to_runs_with("early_stopping_patience"),
    "adam_beta1": _moments,
    "adam_beta2": _moments,
    "adam_epsilon": _to_all_but("optimizer", *(name for name in OptimizerName if not name.traits.epsilon)),
    "momentum": _to("optimizer", *(name for name in OptimizerName if name.traits.momentum)),
    "warmup": _to_all_but("lr_scheduler", Scheduler.CONSTANT, Scheduler.REDUCE_ON_PLATEAU),
    "min_lr_ratio": _to("lr_scheduler", Scheduler.WSD, Scheduler.COSINE_WITH_MIN_LR, Scheduler.REDUCE_ON_PLATEAU),
    "decay_share": _to("lr_scheduler", Scheduler.WSD),
    "lr_cycles": _to("lr_scheduler", Scheduler.COSINE_WITH_RESTARTS),
    "plateau_patience": _plateau,
    "plateau_factor": _plateau,
    "max_new_tokens": Applies(
        "answer_rows",
        "runs with answer_rows or eval_answers",
        lambda values: _is_given(values, "answer_rows") or _is_given(values, "eval_answers"),
    ),
}
"""The settings that have an effect only under a condition."""
