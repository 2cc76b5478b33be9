"""REST routes of the page Tour: its sample run, and steps that leave no other trace."""

from app.access import notify, quickstart
from app.documents.tour import Step
from app.web.rest.routing import Answer, JsonRouter, answers


class SampleRun(Answer):
    """The sample run that was queued."""

    id: str
    name: str


router = JsonRouter(prefix="/api/tour")


@router.post("/run", status_code=201, **answers(SampleRun, 201))
def start_sample_run() -> dict[str, str]:
    """Queues the sample run: the starter model learns to write orders as JSON."""
    run = quickstart.start()
    return {"id": run.id, "name": run.name}


@router.put("/{step}", status_code=204)
def note_step(step: Step) -> None:
    """Notes that the caller has done a step of the tour."""
    notify.add_tour_step(step)
