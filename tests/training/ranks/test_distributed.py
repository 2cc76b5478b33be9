"""Ranks wait for rank 0 without the time limit of a collective."""

import sys
from pathlib import Path

import pytest
import warm
from paths import ROOT
from patience import run

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


def test_ranks_wait_for_rank_0_beyond_the_time_limit_of_a_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.use_python(monkeypatch)
    done = run([sys.executable, "-c", PROGRAM, str(tmp_path / "meeting")], cwd=ROOT, text=True)
    assert done.stdout == "met\nmet\n", done.stderr
