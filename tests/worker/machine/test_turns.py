"""Turns of programs: a few run at a time, and of one user half as many."""

import contextvars
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from patience import eventually

from training.limited import Limits
from worker.machine import programs
from worker.machine.programs import Program, running_limited
from worker.machine.turns import Turns, act_for

READER = Program("tests.programs.hostile_reader", unconfined="a test reads files of its own")


class Taker:
    """A thread of a user that takes a turn and keeps it until it is let go."""

    def __init__(self, turns: Turns, user: str) -> None:
        self.has, self.go, self._turns = threading.Event(), threading.Event(), turns
        context = contextvars.copy_context()
        context.run(act_for, user)
        self._thread = threading.Thread(target=context.run, args=(self._take,))
        self._thread.start()

    def _take(self) -> None:
        with self._turns.taken():
            self.has.set()
            self.go.wait()

    def end(self) -> None:
        self.go.set()
        self._thread.join()


def test_a_user_has_half_of_the_turns_and_another_one_gets_the_rest() -> None:
    turns = Turns(4)
    with ExitStack() as taken:

        def take(user: str) -> Taker:
            taker = Taker(turns, user)
            taken.callback(taker.end)
            return taker

        of_eve = [take("eve") for _ in range(20)]
        eventually(lambda: sum(taker.has.is_set() for taker in of_eve) == 2)
        of_bob = [take("bob") for _ in range(2)]
        eventually(lambda: all(taker.has.is_set() for taker in of_bob))
        of_carol = take("carol")
        assert sum(taker.has.is_set() for taker in of_eve) == 2 and not of_carol.has.is_set()
        of_bob[0].end()
        eventually(of_carol.has.is_set)
        for taker in of_eve:
            taker.go.set()
        eventually(lambda: all(taker.has.is_set() for taker in of_eve))


def test_a_thread_that_has_a_turn_needs_no_other_and_an_error_ends_it() -> None:
    turns = Turns(1)
    with pytest.raises(ValueError, match="wrong"), turns.taken(), turns.taken():
        raise ValueError("wrong")
    with turns.taken():
        pass


def test_programs_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs, "turns", Turns(1))
    order = tmp_path / "order.txt"
    order.write_text("sleep")
    ended = threading.Event()

    def second() -> None:
        with running_limited(READER, [str(order)], Limits(2 * 2**30, 300)) as process:
            process.kill()
        ended.set()

    with running_limited(READER, [str(order)], Limits(2 * 2**30, 300)) as process:
        thread: Any = threading.Thread(target=second)
        thread.start()
        assert not ended.wait(0.2)
        process.kill()
    thread.join()
    assert ended.is_set()
