"""Ranks wait for rank 0 without the time limit of a collective."""

import subprocess
import sys
from pathlib import Path

from paths import ROOT

PROGRAM = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
from training.ranks.distributed import main_rank_works

rank, meeting = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=5))
with main_rank_works("hashed") as mine:
    if mine:
        time.sleep(7)
dist.barrier()
print("met" if mine == (rank == 0) else "mistaken", flush=True)
"""


def test_ranks_wait_for_rank_0_beyond_the_time_limit_of_a_collective(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")], stdout=subprocess.PIPE, cwd=ROOT)
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=120)[0] for rank in ranks] == [b"met\n", b"met\n"]
