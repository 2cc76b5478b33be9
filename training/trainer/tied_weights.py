"""Weights that several modules share, such as embeddings and head, through the preparation of a model for its ranks.

accelerate ties the weights of a model again while FSDP divides it, by the names in its configuration. Behind the wrapper of an
adapter these names stand for other weights: the head would get the trained copy of the embeddings, and a different model trains.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from training.checkpointing.digest import plain_name
from training.errors import UserError

Ties = frozenset[frozenset[str]]
"""The names of each shared weight."""


def ties(model: torch.nn.Module) -> Ties:
    """Returns the names of the weights that several modules of `model` share, without the names of wrappers."""
    names: defaultdict[int, set[str]] = defaultdict(set)
    for name, weight in model.named_parameters(remove_duplicate=False):
        names[id(weight)].add(plain_name(name))
    return frozenset(frozenset(shared) for shared in names.values() if len(shared) > 1)


@contextmanager
def kept_tied(model: torch.nn.Module) -> Iterator[None]:
    """A context in which `model.tie_weights()` restores the ties that `model` has now, whatever its configuration says.

    FSDP accepts a shared weight in one of its groups only. accelerate makes groups of embeddings and head unless it sees that they
    share their weight; behind a wrapper it does not see it, and both stay in the group of what is in no other.
    """
    shared, own = ties(model), vars(model)
    hidden: dict[str, Any] = {"tie_weights": lambda *_, **__: _tie(model, shared)}
    if ties_behind_wrapper(model):
        hidden |= {name: lambda: None for name in ("get_input_embeddings", "get_output_embeddings")}
    own.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del own[name]


def check_ties(before: Ties, model: torch.nn.Module, strategy: str) -> None:
    """Checks that the modules of `model` share the same weights as before it was prepared.

    Raises:
        UserError: they do not, so that another model would be trained.
    """
    if different := sorted(" and ".join(sorted(names)) for names in before ^ ties(model)):
        message = f"would train another model: {different[0]} share their weight either before or after the model is prepared."
        raise UserError("strategy", strategy, message, "Set strategy to ddp, or to one of zero1 to zero3.")


def ties_behind_wrapper(model: Any) -> bool:
    """True if modules share weights, but not embeddings and head as modules without a wrapper."""
    weights = [getattr(part(), "weight", None) for part in (model.get_input_embeddings, model.get_output_embeddings)]
    return bool(ties(model)) and (weights[0] is None or weights[0] is not weights[1])


def _tie(model: torch.nn.Module, shared: Ties) -> None:
    for names in shared:
        first, *others = sorted(names)
        for name in others:
            module, _, weight = name.rpartition(".")
            model.get_submodule(module)._parameters[weight] = model.get_parameter(first)
