"""The losses of trl on fake tensors: those of the run's objective, which needs no trainer for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch

from training.config.run_config import RunConfig
from training.trainer.loss_terms import LossTerms
from training.trainer.objectives import objective_of

Loss = Callable[[dict[str, Any]], torch.Tensor]


def trl_loss(config: RunConfig, model: Any, reference: Any, autocast: Callable[[], Any]) -> Loss:
    """Prepares the models as the run does, and returns the loss of a batch, in the context `autocast`."""
    ranks = SimpleNamespace(
        device=torch.device("cpu"), num_processes=1, is_main_process=False, gather=_same, gather_for_metrics=_same,
        unwrap_model=_same, autocast=autocast, reduce=_same,
    )  # fmt: skip
    if config.task.traits.samples:
        from training.trainer.policy_loss import PolicyLoss

        policy = PolicyLoss(config, model, None, reference)
        policy.connect(model, ranks)
        return lambda batch: LossTerms(policy.terms(policy.forward(model, batch), batch)).total()
    compared: Any = objective_of(config)(config, model, **{} if reference is None else {"reference": reference})
    compared.trl.connect(model, ranks)
    return lambda batch: cast(torch.Tensor, compared.loss(model, batch).total())


def _same(value: Any, **_: Any) -> Any:
    return value


@contextmanager
def head_on_cuda() -> Iterator[None]:
    """Within it, the fused head scores only the tokens with loss, in place in its tile, as its Triton kernels do."""
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    def in_place(*_: Any, **__: Any) -> None:
        """A kernel that allocates nothing."""

    with (
        patch.object(utils, "_use_triton", lambda _: True),
        patch.object(chunked_logprob, "_forward_tile", in_place),
        patch.object(chunked_logprob, "_backward_tile", in_place),
    ):
        yield
