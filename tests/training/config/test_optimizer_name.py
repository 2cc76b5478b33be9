"""Each optimizer has a row, and what its row says is what is made of it."""

import pytest
from transformers.training_args import OptimizerNames

from training.config.fields import parse
from training.config.optimizer_name import OPTIMIZERS, OptimizerName
from training.trainer.optimizers import optimizer_arguments, optimizer_factory


def test_each_optimizer_has_a_row() -> None:
    assert OPTIMIZERS.keys() == set(OptimizerName)


@pytest.mark.parametrize("name", OptimizerName)
def test_an_optimizer_is_one_of_transformers_or_one_of_ours(name: OptimizerName) -> None:
    config = parse({"model": "m", "data": "d", "optimizer": name.value})
    known = name.traits.transformers_name
    if known:
        assert optimizer_arguments(config)["optim"] == OptimizerNames(known) and optimizer_factory(config) is None
    else:
        cls, arguments = optimizer_factory(config)
        assert cls and ("betas" in arguments, "eps" in arguments) == (name.traits.betas, name.traits.epsilon)
        assert ("momentum" in arguments) == name.traits.momentum
