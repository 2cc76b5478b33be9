"""What goes wrong while a model trains on its samples, told once with cause and fix: it writes longer and longer ones; and with
rewards, it stops learning, gets worse, or learns the rewards in place of the task."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from training.config.run_config import RunConfig
from training.run_folder.events import Note
from training.trainer.overlap import FIX

STEPS = 10
"""The last batches of samples that an alarm reads: one for each step, or for `num_iterations` of them."""
_SOME = 5  # of these, whose mean reward is compared with earlier ones
_SURE = 3  # standard errors
_LONGER, _MANY_CUT_OFF, _MORE_CUT_OFF, _FALL = 1.5, 0.5, 0.25, 0.05

Values = Mapping[str, float]
"""Means over the samples of a step, by the names of metrics."""


class Alarms:
    """Watches the steps of an attempt. `start` are the values of the untrained model, or of the attempt's first steps."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._told = config, set[str]()
        self._start: Values | None = None
        self._steps: deque[Values] = deque(maxlen=STEPS)
        self._best = -math.inf
        self._peak: Values | None = None  # the means of the best _SOME steps

    def begin(self, start: Values) -> None:
        """Takes the values of the untrained model."""
        self._start = start

    def after_step(self, values: Values) -> list[Note]:
        """The alarms after a step with these values."""
        self._steps.append(values)
        if (reward := values.get("reward", math.nan)) > self._best:
            self._best = reward
        if self._start is None and len(self._steps) == _SOME:
            self._start = _means(self._steps)
        if self._start is None or len(self._steps) < _SOME:
            return []
        alarms = {"longer": self._longer(self._start)}
        if self._config.task.traits.rewards_samples:
            latest = _means(list(self._steps)[-_SOME:])
            if self._peak is None or latest["reward"] > self._peak["reward"]:
                self._peak = latest
            alarms |= {"equal": self._equal(), "lower": self._lower(self._start)}
        return self._new(alarms)

    def after_evaluation(self, history: Sequence[Mapping[str, Any]], spread: float, rows: int) -> list[Note]:
        """The alarms after an evaluation, the last one in the trainer's log. `spread` is the standard deviation of the rewards of
        `rows` held-out answers."""
        *before, last = [entry for entry in history if "eval_reward" in entry] or [{}]
        if not before:
            return []
        highest = max(before, key=lambda entry: float(entry["eval_reward"]))
        (best_step, best), (step, now) = (
            (int(entry["step"]), float(entry["eval_reward"])) for entry in (highest, last)
        )
        certain = _SURE * spread * math.sqrt(2 / max(rows, 1))
        if now >= best - max(certain, _FALL * abs(best)):
            return []
        fell = f"The reward of held-out prompts fell from {best:.3g} (step {best_step:,}) to {now:.3g} (step {step:,})"
        trained, now_trained = _reward_at(history, best_step), _reward_at(history, step)
        if trained is not None and now_trained is not None and now_trained > trained:
            message = (
                f"{fell}, while that of the training samples rose from {trained:.3g} to {now_trained:.3g}: the model "
            )
            message += "learns what the rewards measure, or these prompts, and not the task. Read the samples; add a reward that "
            message += "such samples do not get, or more prompts. load_best_at_end keeps the best checkpoint."
            return self._new({"held out": message})
        return self._new({"held out": f"{fell}. {self._lower_rate} load_best_at_end keeps the best checkpoint."})

    def _equal(self) -> str | None:
        if len(self._steps) < STEPS or any(values["all_equal_groups"] < 1 for values in self._steps):
            return None
        reward = _means(self._steps)["reward"]
        message = f"In the last {STEPS * self._config.iterations} steps all samples of each prompt had the same reward, so that "
        message += f"nothing was learned (mean reward {reward:.3g}). Stop the run"
        if self._best <= min(0.0, self._start["reward"] if self._start else 0.0):
            easier = "raise num_generations or temperature, or use easier prompts."
            return f"{message}: {easier} If a reward is wrong, lathe reward shows it."
        if reward >= self._best - _FALL * abs(self._best):
            return f"{message}, or go on with harder prompts: the model has learned what these can teach."
        return (
            f"{message}: its samples have become alike. The mean reward was {self._best:.3g} before. {self._lower_rate}"
        )

    def _lower(self, start: Values) -> str | None:
        """The reward of the latest steps is lower than at the start or in earlier ones, by more than other prompts explain."""
        latest = _means(list(self._steps)[-_SOME:])
        best, prompts, when = self._peak or start, self._prompts, "before"
        if best["reward"] <= start["reward"]:
            best, prompts, when = start, self._config.baseline_prompts or self._prompts, "at the start"
        error = math.hypot(latest["reward_std"] / math.sqrt(self._prompts), best["reward_std"] / math.sqrt(prompts))
        if math.isnan(latest["reward"]) or latest["reward"] >= best["reward"] - max(
            _SURE * error, _FALL * abs(best["reward"])
        ):
            return None
        steps = _SOME * self._config.iterations
        message = f"The mean reward of the last {steps} steps is {latest['reward']:.3g}, and it was {best['reward']:.3g} {when}: "
        return f"{message}training makes the model worse. {self._lower_rate}"

    @property
    def _prompts(self) -> float:
        """The prompts of _SOME steps. They are independent; the samples of a prompt score alike."""
        return max(_SOME * self._config.global_batch_size / self._config.num_generations, 1)

    def _longer(self, start: Values) -> str | None:
        now = _means(self._steps)
        if now["cut_off"] < _MANY_CUT_OFF or now["cut_off"] <= start["cut_off"]:
            return None
        grown = now["completion_length"] >= _LONGER * start["completion_length"]
        if not grown and now["cut_off"] < start["cut_off"] + _MORE_CUT_OFF:
            return None
        message = (
            f"{now['cut_off']:.0%} of the samples are cut off ({start['cut_off']:.0%} at the start); their mean length is "
            f"{now['completion_length']:.3g} tokens ({start['completion_length']:.3g}). "
        )
        longest = f"raise max_completion_length ({self._config.max_completion_length:,})"
        if self._config.task.traits.rewards_samples:
            return f"{message}Add a reward for their length, or {longest}."
        left = "the model has left what the teacher knows: stop the run."
        return f"{message}If the teacher's answers are longer, {longest}. If not, {left} {FIX}"

    @property
    def _lower_rate(self) -> str:
        rate = self._config.learning_rate
        keeps = "" if self._config.kl_coefficient else ", or set kl_coefficient to 0.05"
        return f"Lower learning_rate ({rate:g}), for example to {rate / 10:g}{keeps}."

    def _new(self, alarms: Mapping[str, str | None]) -> list[Note]:
        """Those that were not told yet."""
        new = {name: text for name, text in alarms.items() if text and name not in self._told}
        self._told |= set(new)
        return [Note(message=text, level="warning") for text in new.values()]


def _means(steps: Iterable[Values]) -> dict[str, float]:
    """The mean of each value over the steps that have it; NaN where none has."""
    every = list(steps)
    names = {name for values in every for name in values}
    present = {name: [values[name] for values in every if not math.isnan(values.get(name, math.nan))] for name in names}
    return {name: fmean(values) if values else math.nan for name, values in present.items()}


def _reward_at(history: Sequence[Mapping[str, Any]], step: int) -> float | None:
    """The reward of training samples that was logged last up to a step."""
    logged = [float(entry["reward"]) for entry in history if "reward" in entry and int(entry["step"]) <= step]
    return logged[-1] if logged else None
