"""When a machine is too busy to start a run, judged from measurements."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from supervised import queue_run
from web import client

from app.cli.__main__ import main
from app.cli.runs.follow import waiting
from app.documents.run import document
from worker.machine.overload import Gauge, Overload
from worker.store import database


@pytest.mark.parametrize(("load", "late"), [(1.0, 0.0), (8.0, 0.5), (23.9, 14.9)])
def test_a_busy_machine_is_not_overloaded(load: float, late: float) -> None:
    assert Overload(150).measured(load, late) == ""


def test_a_long_run_queue_per_core_is_an_overload() -> None:
    assert Overload(150).measured(30.0, 0.0) == "load average of 30 per core"


def test_waking_a_tenth_of_the_lease_late_is_an_overload() -> None:
    assert Overload(150).measured(1.0, 16.0) == "a sleeping thread woke 16 s late"


def test_an_overloaded_machine_recovers_only_at_low_load() -> None:
    overload = Overload(150)
    assert overload.measured(30.0, 0.0)
    assert overload.measured(13.0, 0.0)
    assert overload.measured(1.0, 4.0)
    assert not overload.measured(11.0, 0.0)
    assert not overload.measured(13.0, 4.0)


def test_short_leases_tolerate_a_short_delay() -> None:
    assert Overload(2).measured(1.0, 0.9) == ""


def test_page_command_and_follow_report_an_overloaded_machine(home: Path) -> None:
    run_id = queue_run()
    Gauge().take(load=50.0, late=0.0)
    message = "Machines that start no runs at present: "
    assert message in client().get("/").text
    assert message in CliRunner().invoke(main, ["runs"]).output
    with database.read() as session:
        queue = document(session, run_id).queue.model_dump()
    assert message in waiting(queue, 0.0)
