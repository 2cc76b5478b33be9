"""Copies of state in host memory."""

from collections import OrderedDict

import torch

from training.checkpointing.deferred_writes import HostCopies


class Scaler:
    """An object that is pickled with its class, such as DeepSpeed's loss scaler."""

    def __init__(self) -> None:
        self.scale, self.history = 2.0, [1]


def test_each_copy_holds_the_state_of_its_moment_whatever_the_containers():
    copies, weight, scaler = HostCopies(), torch.nn.Parameter(torch.ones(3)), Scaler()
    state = OrderedDict(model={"weight": weight, "tied": weight}, scaler=scaler, sizes=[(torch.Size([3]), None)])
    for scale in (2.0, 4.0):
        scaler.scale = scale
        scaler.history.append(int(scale))
        with torch.no_grad():
            weight.fill_(scale)
        copied = copies.copy("state", state)
        with torch.no_grad():
            weight.zero_()
        assert type(copied) is OrderedDict and copied["sizes"] == [(torch.Size([3]), None)]
        assert copied["model"]["weight"].tolist() == copied["model"]["tied"].tolist() == [scale] * 3
        assert (copied["scaler"].scale, copied["scaler"].history) == (scale, scaler.history)
        assert copied["scaler"].history is not scaler.history
