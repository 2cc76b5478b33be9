"""The weights that a checkpoint or result saves, without copies of those that it does not."""

from typing import cast

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

State = dict[str, torch.Tensor]


def copied(model: torch.nn.Module) -> State:
    """The state of a model on this rank: trained weights as copies in host memory, frozen ones as they are.

    ZeRO-1 and ZeRO-2 keep trained weights as parts of flat buffers, which files must not contain whole.
    """
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {
        name: tensor.detach().to("cpu", copy=True) if name in trained else tensor
        for name, tensor in model.state_dict().items()
    }


def gathered_trained(model: torch.nn.Module) -> State:
    """The trained weights of a model that FSDP divides, complete in the host memory of rank 0. Every rank calls it."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    return cast(State, get_model_state_dict(model, options=options))
