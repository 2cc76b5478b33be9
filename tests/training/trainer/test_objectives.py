"""One trainer trains every task, and an objective is composed: neither inherits from a trainer of trl."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest
from transformers import Trainer

import training.trainer
from training.config.run_config import RunConfig
from training.config.task import Task
from training.trainer.objective import Objective
from training.trainer.objectives import objective_of
from training.trainer.reporting_trainer import ReportingTrainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]


def classes() -> Iterator[type]:
    """The classes of training/trainer."""
    for found in pkgutil.iter_modules(training.trainer.__path__):
        module = importlib.import_module(f"training.trainer.{found.name}")
        yield from (one for _, one in inspect.getmembers(module, inspect.isclass) if one.__module__ == module.__name__)


def test_no_class_has_more_than_two_bases_or_inherits_from_trl() -> None:
    every = list(classes())
    assert {ReportingTrainer, Objective} < set(every)
    assert [one for one in every if len(one.__bases__) > 2] == []
    assert [one for one in every if any(base.__module__.startswith("trl.") for base in one.__mro__)] == []


def test_there_is_one_trainer() -> None:
    trainers = [one for one in classes() if issubclass(one, Trainer)]
    assert [one for one in trainers if not one.__subclasses__()] == [ReportingTrainer]
    assert all(len(one.__bases__) == 1 for one in trainers)


@pytest.mark.parametrize("task", Task)
def test_each_task_has_an_objective_that_is_no_trainer(task: Task) -> None:
    made = objective_of(RunConfig(model="m", data="d", task=task))
    assert issubclass(made, Objective) and not issubclass(made, Trainer)
    assert all(getattr(made, name) is not getattr(Objective, name) for name in ("items", "loss"))
    assert made.collator(RunConfig(model="m", data="d", task=task), 0)
