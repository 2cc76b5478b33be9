"""The weights that are saved: trained ones as copies, frozen ones without."""

import pytest
import torch

from training.checkpointing import weights

pytestmark = pytest.mark.slow  # imports torch


def test_only_trained_weights_are_copied_out_of_their_flat_buffer() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 2, bias=False))
    model[0].requires_grad_(False)
    flat = torch.arange(100.0)
    model[1].weight.data = flat[8:16].view(2, 4)  # as ZeRO-2 keeps it
    state = weights.copied(model)
    assert state["0.weight"].data_ptr() == model[0].weight.data_ptr()
    assert state["1.weight"].untyped_storage().nbytes() == 8 * 4
    flat.zero_()
    assert state["1.weight"].flatten().tolist() == [8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
