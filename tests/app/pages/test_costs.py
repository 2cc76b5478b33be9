"""What pages and lists cost the database beside a long history and a long queue. Counted, not timed."""

from database_work import counted
from sqlmodel import col, delete
from starlette.datastructures import QueryParams

from app.documents import playground, queue
from app.pages import datasets, sweeps
from app.pages.runs.page import listed
from benchmarks.pages import fill
from worker.store import database as db
from worker.store.tables import Run, Status

HISTORY, QUEUE = 60, 6
MOST_STATEMENTS = 30


def of_queue():
    with db.read() as session:
        queue.document(session)


SHOWN = {
    "/": lambda: listed(QueryParams()),
    "/?group=method": lambda: listed(QueryParams("group=method")),
    "/?order=model": lambda: listed(QueryParams("order=model")),
    "/api/queue": of_queue,
    "/api/served": playground.offered,
    "/datasets": lambda: datasets.view.context(QueryParams()),
    "/sweeps": lambda: sweeps.view.context(QueryParams()),
}


def costs():
    found = {}
    for address, show in SHOWN.items():
        with counted() as work:
            show()
        found[address] = work
    return found


def test_no_page_costs_the_length_of_the_queue_times_the_history(home):
    fill.history(HISTORY)
    fill.queue(QUEUE, kinds=QUEUE)
    small = costs()
    fill.queue(4 * QUEUE, kinds=4 * QUEUE)
    longer_queue = costs()
    fill.history(3 * HISTORY)
    both = costs()
    with db.write() as session:
        session.exec(delete(Run).where(col(Run.status) == Status.QUEUED))
    fill.queue(QUEUE, kinds=QUEUE)
    longer_history = costs()
    for address in SHOWN:
        product = (
            both[address].steps - longer_history[address].steps - longer_queue[address].steps + small[address].steps
        )
        assert product < both[address].steps / 4 + 2000, f"{address}: {product} steps more for both than for each"
        assert len(both[address].statements) <= MOST_STATEMENTS, address
