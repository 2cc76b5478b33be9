"""Why rewards cannot be those of the reward models that they name, as far as the files on this machine say."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from training.errors import Problem, UserError
from training.model_info.folder import adapter_base
from training.model_info.reward_model import FIX, check_reward_model
from training.rewards.reward_model import RewardModel
from training.rewards.reward_options import reward_model_of
from training.rewards.rewards import Reward, reward_models
from worker.allowed_paths import HUB_ID, AllowedPaths
from worker.runs.settle import Settled, find_result


def of(reward: Reward) -> RewardModel:
    """The reward model of a reward of this kind whose options are right."""
    return reward_model_of(reward.options)


def with_folder(reward: Reward) -> Reward:
    """The reward with the folder of its settled model in place of a run's id. The model has no problems."""
    folder = find_result("rewards", of(reward).name)
    others = {name: value for name, value in reward.options.items() if name not in ("run", "model")}
    return replace(reward, options=others | {"model": str(folder)}) if isinstance(folder, Path) else reward


def problems_of_run(settled: Settled) -> Iterator[Problem]:
    """The problems of the reward models among a run's rewards."""
    if settled.config.task.traits.rewards_samples:
        yield from problems(reward_models(settled.config.rewards), settled.allowed, "rewards")


def problems(models: Iterable[RewardModel], allowed: AllowedPaths, field: str) -> Iterator[Problem]:
    """The problems of settled reward models: they may not be named, are not here, or are none. The files of one on the hub are not
    here yet. `field` names them."""
    for model in models:
        if refused := allowed.model(model.name, field):
            yield refused
            continue
        folder = find_result(field, model.name)
        if isinstance(folder, Problem):
            yield folder
        elif folder is not None:
            yield from _file_problems(folder, model.name, allowed, field)
        elif model.run or not HUB_ID.fullmatch(model.model):
            yield Problem(field, model.name, "is no run." if model.run else "is no folder on this machine.", FIX)


def _file_problems(folder: Path, name: str, allowed: AllowedPaths, field: str) -> Iterator[Problem]:
    base = adapter_base(folder)
    if base and (refused := allowed.model(base, field)):
        yield Problem(field, name, f"is an adapter on {base}, which {refused.message}", refused.fix)
        return
    try:
        check_reward_model(folder, name)
    except UserError as error:
        yield Problem(field, name, error.message, error.fix)
