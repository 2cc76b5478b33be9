"""The order in which runs of several sizes start on a machine with four GPUs."""

from worker.engines.local.starting import next_run
from worker.store.tables import Run

OWN = [f"h/cuda:{index}" for index in range(4)]


def queued(name: str, processes: int, at: float) -> Run:
    return Run(id=name, name=name, config={"num_processes": processes}, created_at=at, queued_at=at)


def turn(waiting: list[Run], free: list[str], now: float) -> tuple[str, list[str]] | None:
    next_up = next_run(waiting, free, OWN, now, overtaking_seconds=600)
    return next_up and (next_up[0].id, next_up[1])


def test_the_oldest_run_that_fits_starts_first() -> None:
    waiting = [queued("first", 2, at=0), queued("second", 1, at=1)]
    assert turn(waiting, OWN[1:], now=10) == ("first", ["h/cuda:1", "h/cuda:2"])


def test_a_smaller_run_starts_before_one_whose_devices_are_busy() -> None:
    waiting = [queued("large", 4, at=0), queued("small", 1, at=1)]
    assert turn(waiting, OWN[:3], now=600) == ("small", ["h/cuda:0"])


def test_no_run_overtakes_one_that_has_waited_long() -> None:
    waiting = [queued("large", 4, at=0), queued("small", 1, at=1)]
    assert turn(waiting, OWN[:3], now=601) is None
    assert turn(waiting, OWN, now=601) == ("large", OWN)


def test_a_run_too_large_for_this_machine_does_not_block_others() -> None:
    waiting = [queued("larger", 8, at=0), queued("small", 1, at=1)]
    assert turn(waiting, OWN[:1], now=9_999) == ("small", ["h/cuda:0"])


def test_no_run_starts_without_a_free_device() -> None:
    assert turn([queued("small", 1, at=0)], [], now=10) is None
