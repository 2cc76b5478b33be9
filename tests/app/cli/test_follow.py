"""Following a run: the printed lines while it is queued, trains and ends."""

import io

import pytest
from played_run import GIB, PlayedRun
from sqlalchemy.exc import OperationalError

from app.cli.options import CLEAR
from app.cli.runs import follow as cli_follow
from app.cli.runs.follow import LiveScreen, Screen, follow, screen_for
from training.run_folder.events import CheckpointSaved, Metrics, Note, PhaseStarted, Planned, Progress
from worker.store.tables import Status

PLAN = Planned(
    total_steps=400,
    start_step=0,
    train_rows=1600,
    eval_rows=50,
    skipped_rows=0,
    truncated_rows=0,
    engine="LlamaForCausalLM",
    zero_stage=None,
    world_size=1,
    precision="fp32",
    trainable_parameters=10,
    total_parameters=100,
    target_modules=["q_proj"],
)


class Script:
    """Plays one part of a run at each pause of the follower, and adds up the time of the pauses without waiting."""

    def __init__(self, *parts, seconds=10.0):
        self.parts, self.now, self.seconds = list(parts), 0.0, seconds

    def sleep(self, _seconds):
        self.now += self.seconds
        if self.parts:
            self.parts.pop(0)()

    def clock(self):
        return self.now


def followed(run, *parts, seconds=10.0):
    """Returns the lines that a follower writes to a file, and the end of the run."""
    script, out = Script(*parts, seconds=seconds), io.StringIO()
    status = follow(run.id, Screen(out, clock=script.clock), sleep=script.sleep, clock=script.clock)
    return out.getvalue().splitlines(), status


def test_a_run_without_a_worker_shows_how_to_start_one(home):
    run = PlayedRun()
    lines, status = followed(run, lambda: None, run.ask_to_stop)
    assert lines[:2] == [
        "Queued: position 1 of 1 in the queue",
        "Waiting for a worker; start one with `lathe up` (position 1 of 1 in the queue)",
    ]
    assert status is Status.STOPPED


def test_a_queued_run_shows_its_place_and_the_active_run(home):
    PlayedRun().claim()
    PlayedRun()
    run = PlayedRun()
    lines, _ = followed(run, run.ask_to_stop)
    assert lines[0] == "Queued: position 2 of 2 in the queue, 1 run running"


def test_each_phase_has_a_line_and_training_shows_metrics_with_units(database):
    run = PlayedRun()
    lines, status = followed(
        run,
        lambda: run.claim().report(PhaseStarted(phase="loading data"), Progress(done=120, total=600)),
        lambda: run.report(
            PLAN,
            PhaseStarted(phase="training"),
            Metrics(step=100, values={"loss": 0.51234, "eval_loss": 0.625, "tokens_per_second": 1234.4}, time=100.0),
            Metrics(step=100, values={"memory_peak": 1.5 * GIB}, rank=0, time=100.0),
        ),
        lambda: run.report(Metrics(step=200, values={"loss": 0.25}, time=150.0)),
        run.end,
    )
    assert "loading data  120/600" in lines
    trained = next(line for line in lines if line.startswith("training  100/400"))
    assert "loss 0.5123" in trained
    assert "eval loss 0.6250" in trained
    assert "1,234 tokens/s" in trained
    later = next(line for line in lines if line.startswith("training  200/400"))
    assert "loss 0.2500" in later
    assert "ETA " in later
    assert status is Status.FINISHED


def test_a_run_that_is_rewarded_shows_its_rewards_in_place_of_losses(home):
    run, values = PlayedRun(task="grpo", rewards="contains"), {"loss": 1e-9, "reward": 0.25, "eval_loss": -0.5}
    lines, _ = followed(
        run, lambda: run.claim().report(PLAN, PhaseStarted(phase="training"), Metrics(step=100, values=values)), run.end
    )
    trained = next(line for line in lines if line.startswith("training  100/400"))
    assert "reward 0.2500  eval reward 0.5000" in trained and "loss" not in trained


def test_progress_within_a_phase_is_printed_only_every_few_seconds(home):
    run = PlayedRun().claim().report(PLAN, PhaseStarted(phase="training"))
    steps = [lambda step=step: run.report(Metrics(step=step, values={"loss": 1.0})) for step in range(1, 13)]
    lines, _ = followed(run, *steps, run.end, seconds=1.0)
    assert [line.split()[1] for line in lines if line.startswith("training")] == ["0/400", "5/400", "10/400"]


def test_a_phase_of_unknown_length_shows_the_elapsed_time(home):
    run = PlayedRun().claim().report(PhaseStarted(phase="loading model"))
    lines, _ = followed(run, lambda: None, lambda: None, run.end, seconds=65.0)
    times = [line.removeprefix("loading model") for line in lines if line.startswith("loading")]
    assert times == ["", "  1 min 5 s", "  2 min 10 s"]


def test_notes_and_checkpoints_are_printed_once(home):
    run = PlayedRun().claim()
    note = Note(message="3 rows were cut off", level="warning")
    saved = CheckpointSaved(step=10, path="checkpoints/checkpoint-10", bytes=2**21)
    lines, _ = followed(run, lambda: run.report(note, saved), lambda: None, run.end)
    assert lines.count("warning: 3 rows were cut off") == 1
    assert lines.count("Checkpoint at step 10 (2.0 MiB).") == 1


def test_a_stopping_run_is_shown_as_stopping(home):
    run = PlayedRun().claim().report(PhaseStarted(phase="training"))
    lines, status = followed(run, run.ask_to_stop, lambda: run.end(Status.STOPPED))
    assert any(line.startswith("stopping") for line in lines)
    assert status is Status.STOPPED


def test_following_waits_for_an_unreachable_database(home, monkeypatch):
    run = PlayedRun().claim()
    read, refusals = cli_follow.read, iter([True, True])

    def sometimes(*arguments):
        if next(refusals, False):
            raise OperationalError("SELECT", {}, Exception("database is locked"))
        return read(*arguments)

    monkeypatch.setattr(cli_follow, "read", sometimes)
    lines, status = followed(run, lambda: None, run.end)
    assert lines[0] == "The database is unreachable; retrying"
    assert status is Status.FINISHED


def test_on_a_terminal_one_line_is_rewritten_below_the_notes():
    out = io.StringIO()
    screen = LiveScreen(out)
    screen.update("training 1/2", "training")
    screen.note("checkpoint saved")
    screen.update("training 2/2", "training")
    screen.close()
    assert out.getvalue() == f"{CLEAR}training 1/2{CLEAR}checkpoint saved\ntraining 1/2{CLEAR}training 2/2{CLEAR}"


def test_a_line_longer_than_the_terminal_is_truncated(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    out = io.StringIO()
    LiveScreen(out).update("x" * 50, "training")
    assert out.getvalue() == CLEAR + "x" * 18 + "…"


def test_a_file_gets_plain_lines():
    assert isinstance(screen_for(io.StringIO()), Screen)


@pytest.mark.parametrize(
    ("run", "seconds"),
    [
        ({"seconds_per_step": 0.5, "total_steps": 400, "step": 150}, 125.0),
        ({"seconds_per_step": None, "total_steps": 400, "step": 150}, None),
        ({"seconds_per_step": 0.5, "total_steps": 400, "step": 400}, None),
    ],
)
def test_the_remaining_time_is_time_per_step_times_remaining_steps(run, seconds):
    assert cli_follow.eta(run) == seconds
