"""Prints where the ranks meet and the sum over them of 1 + rank: what accelerate launches in test_launch.py."""

import os
import sys
from pathlib import Path

import torch

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.ranks.distributed import reduce_over_ranks, start
from training.reports.report import Report

rank = int(os.environ["RANK"])
start(RunConfig(model="m", data="d", strategy="ddp", num_processes=2), Machine(), Report(Path(sys.argv[1]), rank))
total = int(reduce_over_ranks(torch.tensor(1 + rank)))
os.write(1, f"{os.environ['MASTER_ADDR']} sum {total}\n".encode())  # in one piece: both ranks write here
