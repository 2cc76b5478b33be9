"""When a machine is too busy to start a run, judged from measurements."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from supervised import queue_run

from app.cli import main
from app.cli_follow import waiting
from app.pages.runs import View, render
from app.run_document import document
from worker import database
from worker.overload import Gauge, Overload


@pytest.mark.parametrize(("load", "late"), [(1.0, 0.0), (8.0, 0.5), (23.9, 14.9)])
def test_a_machine_at_work_is_not_overloaded(load: float, late: float) -> None:
    assert Overload(150).measured(load, late) == ""


def test_a_long_queue_for_each_core_is_an_overload_that_names_it() -> None:
    assert Overload(150).measured(30.0, 0.0) == "load average of 30 per core"


def test_waking_late_by_a_tenth_of_the_lease_is_an_overload_that_names_it() -> None:
    assert Overload(150).measured(1.0, 16.0) == "a sleeping thread woke 16 s late"


def test_an_overloaded_machine_has_not_recovered_until_it_is_calm() -> None:
    overload = Overload(150)
    assert overload.measured(30.0, 0.0)
    assert overload.measured(13.0, 0.0)
    assert overload.measured(1.0, 4.0)
    assert not overload.measured(11.0, 0.0)
    assert not overload.measured(13.0, 4.0)


def test_leases_of_seconds_do_not_make_a_hiccup_an_overload() -> None:
    assert Overload(2).measured(1.0, 0.9) == ""


def test_the_page_the_command_and_who_follows_a_run_say_that_it_waits_for_an_overloaded_machine(home: Path) -> None:
    run_id = queue_run()
    Gauge().take(load=50.0, late=0.0)
    told = "No run starts on an overloaded machine until it recovers"
    assert told in render(View())
    assert told in CliRunner().invoke(main, ["runs"]).output
    with database.read() as session:
        queue = document(session, run_id)["queue"]
    assert told in waiting(queue, 0.0)
