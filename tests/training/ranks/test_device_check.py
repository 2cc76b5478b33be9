"""The program that tries devices, on this machine's CPU: its kernels, and two processes for the links."""

import json

import pytest
import torch

from training.ranks import device_check

pytestmark = [pytest.mark.slow, pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")]


def test_the_cpu_computes_in_every_precision_and_two_processes_reach_each_other(capsys):
    device_check.main(["2"])
    answer = json.loads(capsys.readouterr().out)
    assert (answer["gpus"], [device["problems"] for device in answer["devices"]]) == (0, [{}])
    (link,) = answer["links"]
    assert (link["first"], link["second"]) == (0, 1)
    assert link["bandwidth"] > 1e6 and 0 < link["latency"] < 60


def test_a_wrong_product_is_found(monkeypatch):
    monkeypatch.setattr(device_check, "_EXPECTED", 63.0)
    tried = device_check.tried(torch.device("cpu"))
    assert set(tried["problems"]) == {"float32", "bfloat16", "float16"}


def test_a_device_that_is_not_there_is_named():
    tried = device_check.tried(torch.device("cuda", 0))
    assert "CUDA" in tried["problems"]["float32"] or "NVIDIA" in tried["problems"]["float32"]
