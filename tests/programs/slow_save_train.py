"""The training program; rank 0 takes longer to write the result than a collective may last."""

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from training import train
from training.results import finish
from training.trainer.reporting_trainer import ReportingTrainer

check_result, save_result, save_model = finish.check_result, finish.save_result, ReportingTrainer.save_model


def limit_collectives(limit: timedelta) -> None:
    dist.distributed_c10d._set_pg_timeout(limit)  # type: ignore[attr-defined]


def limited(self: ReportingTrainer, folder: str) -> None:
    """The ranks of DDP meet in no collective from here to the end of the save."""
    limit_collectives(timedelta(seconds=0.1))
    save_model(self, folder)


def slow(*arguments: Any) -> None:
    time.sleep(1)
    check_result(*arguments)


def unlimited_afterwards(*arguments: Any) -> Any:
    result = save_result(*arguments)
    limit_collectives(timedelta(hours=1))
    return result


if __name__ == "__main__":
    finish.check_result, finish.save_result = slow, unlimited_afterwards
    ReportingTrainer.save_model = limited
    train.main()
