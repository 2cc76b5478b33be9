"""Ranks wait for rank 0 without the time limit of a collective, and DeepSpeed takes no step before training."""

import json
import sys
from pathlib import Path

import pytest
import warm
from paths import ROOT
from patience import run
from web import free_port

PROGRAM = """
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
from training.ranks.distributed import main_rank_works

rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.1))
with main_rank_works("hashed") as mine:
    if mine:
        time.sleep(1)
print("met" if mine == (rank == 0) else "mistaken", flush=True)
if rank == 0:
    os.wait()
"""

FIRST_STEP = """
import os, sys
from pathlib import Path
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"}
import torch
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.ranks.distributed import start
from training.reports.report import Report
from deepspeed.runtime.fp16.loss_scaler import LossScaleConfig, LossScaleProfile
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

start(RunConfig(model="m", data="d", strategy="zero0"), Machine(), Report(Path(sys.argv[1]), 0))
weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
inner = torch.optim.AdamW([weight], lr=0.125, weight_decay=0.5)
scale = LossScaleConfig(torch.bfloat16, False, 1.0, None, profile=LossScaleProfile.UNFUSED)
zero = FP16_UnfusedOptimizer(inner, None, scale, low_precision_dtype=torch.bfloat16)
weight.grad = torch.ones_like(weight)
zero.step()
print(zero.fp32_groups[0][0].tolist())
"""


def test_the_first_step_of_zero_0_in_16_bits_is_that_of_adam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm.use_python(monkeypatch)
    done = run([sys.executable, "-c", FIRST_STEP, str(tmp_path), str(free_port())], cwd=ROOT, text=True)
    # One decay by 0.125 x 0.5, and one update of a size of 0.125.
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx([0.8125] * 3, rel=1e-6), done.stderr


def test_ranks_wait_for_rank_0_beyond_the_time_limit_of_a_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.use_python(monkeypatch)
    done = run([sys.executable, "-c", PROGRAM, str(tmp_path / "meeting")], cwd=ROOT, text=True)
    assert done.stdout == "met\nmet\n", done.stderr
