"""A run that leased GPUs does not train on the CPU without a word."""

import pytest
import torch

from training.errors import UserError
from training.ranks.distributed import compute_device
from training.run_folder.paths import LEASED_GPUS_VARIABLE
from worker.machine import devices
from worker.machine.process_identity import hostname

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")


def test_a_process_with_a_leased_gpu_and_no_cuda_is_refused_with_the_reason(monkeypatch):
    for name, value in devices.variables([f"{hostname()}/cuda:0", f"{hostname()}/cuda:2"]).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as refused:
        compute_device()
    assert refused.value.message.startswith(f"torch {torch.__version__} sees 0 of 2 leased GPUs: ")
    assert "0,2" in str(refused.value)
    assert "CUDA" in refused.value.message or "NVIDIA" in refused.value.message


@pytest.mark.parametrize("leased", [None, [f"{hostname()}/cpu"]])
def test_without_leased_gpus_the_cpu_computes(monkeypatch, leased):
    monkeypatch.delenv(LEASED_GPUS_VARIABLE, raising=False)
    for name, value in devices.variables(leased).items() if leased else ():
        monkeypatch.setenv(name, value)
    assert compute_device().type == "cpu"
