"""When a training process that was asked to stop is killed: by the clock of the test, so that hours take no time."""

import pytest

from benchmarks.chaos.phases import declared
from training.run_folder.events import Metrics, PhaseStarted, Planned, RankLeft, RankStarted
from training.run_folder.paths import checkpoints_dir
from worker.store.tables import Request
from worker.supervision import training_process
from worker.supervision.report_reader import AttemptProgress
from worker.supervision.training_process import Graces, Watchdog

PLAN = {
    "total_steps": 9, "start_step": 0, "train_rows": 1, "eval_rows": 0, "skipped_rows": 0, "truncated_rows": 0, "engine": "",
    "zero_stage": None, "world_size": 1, "precision": "bf16", "trainable_parameters": 1, "total_parameters": 1,
    "target_modules": [],
}  # fmt: skip


class Process:
    """A training process that does nothing, and remembers that it was killed."""

    killed = False

    def __init__(self):
        self.ended: set[int] = set()
        self.why = ""

    def request_stop(self, ranks, why):
        assert [*ranks] == [7]

    def gone(self, ranks):
        return [rank for rank, pid in ranks.items() if pid in self.ended]

    def kill_ranks(self, ranks, why):
        self.kill(why)

    def kill(self, why):
        self.killed, self.why = True, why


class Case:
    """A run that trains, with a clock."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.now = folder, 1000.0
        self.seen, self.process = AttemptProgress(), Process()
        monkeypatch.setattr(training_process, "steady", lambda: self.now)
        self.watch = Watchdog(self.process, self.seen, Graces(), folder)
        self.seen.take(RankStarted(rank=0, pid=7, device="cuda"))
        self.seen.take(Planned(**PLAN))
        self.enter("training")

    def enter(self, phase):
        self.seen.take(PhaseStarted(phase=phase))

    def steps(self, seconds, count=3):
        for step in range(1, count + 1):
            self.seen.take(Metrics(step=step, values={}, time=step * seconds))

    def killed_after(self, seconds, write=False):
        """Whether it is killed within these seconds after the request; `write`: it writes a checkpoint all the time."""
        for second in range(seconds):
            if write:
                file = checkpoints_dir(self.folder) / ".checkpoint-3" / "rank0.pt"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(b"x" * second)
            self.watch.check(Request.STOP)
            if self.process.killed:
                return second
            self.now += 1
        return None


@pytest.fixture
def case(tmp_path, monkeypatch):
    return Case(tmp_path, monkeypatch)


def test_a_step_has_the_time_that_steps_took_before(case):
    case.steps(60.0)
    assert case.killed_after(200) == 121


def test_a_process_that_has_trained_no_step_is_killed_soon(case):
    assert case.killed_after(200) == 9


def test_a_long_step_is_forgotten_slowly(case):
    case.steps(60.0)
    for step in range(4, 60):
        case.seen.take(Metrics(step=step, values={}, time=180.0 + step))
    assert case.killed_after(200) == 9


def test_a_save_may_take_hours_while_it_writes(case):
    case.enter("saving")
    assert case.killed_after(7200, write=True) is None
    assert case.killed_after(200) == 55  # since it wrote last


def test_what_follows_a_save_has_its_time_too(case):
    case.enter("saving")
    assert case.killed_after(100, write=True) is None
    case.enter("training")
    assert case.killed_after(200) == 55


OTHERS = {1: 8, 2: 9, 3: 10}


def started(case, others):
    for rank, pid in others.items():
        case.seen.take(RankStarted(rank=rank, pid=pid, device="cuda"))


@pytest.mark.parametrize("phase", sorted(declared()))
def test_ranks_that_left_are_not_missed_in_any_phase(case, phase):
    for ranks in (2, 4):
        others = dict(list(OTHERS.items())[: ranks - 1])
        started(case, others)
        for rank in others:
            case.seen.take(RankLeft(rank=rank))
        case.process.ended = set(others.values())
        case.enter(phase)
        for _ in range(3600):
            case.watch.check(None)
            case.now += 1
        assert not case.process.why


@pytest.mark.parametrize("phase", sorted(declared()))
def test_a_rank_that_ended_without_a_word_is_missed_in_every_phase(case, phase):
    started(case, OTHERS)
    case.seen.take(RankLeft(rank=3))
    case.process.ended = {9, 10}
    case.enter(phase)
    while not case.process.why:
        case.watch.check(None)
        case.now += 1
    why = f"Rank 2 had ended in the phase {phase} without a report, and the others did not exit within 15 s."
    assert case.process.why == why


def test_a_save_is_not_kept_alive_by_its_log(case):
    case.enter("saving")
    for second in range(56):
        (case.folder / "output.log").write_text("x" * second)
        case.watch.check(Request.STOP)
        case.now += 1
    case.watch.check(Request.STOP)
    assert case.process.killed
