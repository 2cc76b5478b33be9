"""The page System in a real browser: machines, and freeing disk space."""

from browser import IN_BROWSER, says
from machines import GIB, gpu, machine, seen_ago
from played_run import PlayedRun
from run_files import checkpoint, result, steps_of
from sqlmodel import select

from worker.store import database, machines
from worker.store.tables import Machine, Status

pytestmark = IN_BROWSER


def test_devices_link_to_their_runs_and_a_lost_machine_can_be_removed(page):
    machine("node1", devices=[gpu("node1", 0, memory_used_bytes=61 * GIB), gpu("node1", 1)])
    machine("node2")
    seen_ago("node2", 200)
    run = PlayedRun("alpaca").claim("node1/cuda:0")
    page.goto("/system")
    says(page, ".machine", "2 x NVIDIA H100", "61.0 of 80.0 GiB", "idle")
    assert page.locator(f"table.devices a[href='/run?id={run.id}']").count() == 2
    says(page, ".machine.lost", "no contact", "3 min ago")
    page.locator(".machine.lost button").click()
    says(page, "#ask", "Remove node2?")
    page.locator("#ask [data-confirm]").click()
    page.locator(".machine.lost").wait_for(state="detached")
    with database.read() as session:
        assert session.exec(select(Machine.name)).all() == ["node1"]


def test_a_machine_that_was_put_aside_is_taken_back_by_a_click(page):
    machine("node1"), machine("node2")
    with database.write() as session:
        machines.cordon(session=session, host="node2", reason="Lost contact with node2 for 150 s.")
    page.goto("/system")
    says(page, ".put-aside", "node2", "after two failures: Lost contact with node2 for 150 s.")
    page.get_by_label("Use node2 again").click()
    says(page, "#ask", "Use node2 again?", "its failures are forgotten")
    page.locator("#ask [data-confirm]").click()
    page.locator(".put-aside").wait_for(state="detached")
    with database.read() as session:
        assert not machines.cordoned(session=session)


def test_checkpoints_are_freed_after_a_question_by_keyboard(page):
    stopped = PlayedRun("stopped").claim()
    checkpoint(stopped.id, 10)
    stopped.end(Status.STOPPED)
    finished = PlayedRun("finished").claim()
    checkpoint(finished.id, 10, size=5_000_000)
    result(finished.id)
    finished.end()
    page.goto("/system")
    page.locator("button", has_text="Measure again").click()
    says(page, "table.largest", "finished", "stopped")
    free = page.get_by_label("Free Checkpoints of finished runs")
    free.focus()
    page.keyboard.press("Enter")
    says(page, "#ask", "Delete about 4.8 MiB?", "nothing uses their checkpoints any more")
    page.keyboard.press("Escape")
    page.locator("#ask").wait_for(state="hidden")
    assert steps_of(finished.id) == [10]
    free.focus()
    page.keyboard.press("Enter")
    page.locator("#ask [data-confirm]").click()
    says(page, ".banner", "Freed 4.8 MiB in 2 files")
    assert (steps_of(finished.id), steps_of(stopped.id)) == ([], [10])
