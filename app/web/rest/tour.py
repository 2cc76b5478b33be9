"""The REST route of the page Tour, for steps that leave no other trace."""

from app.access import notify
from app.documents.tour import Step
from app.web.rest.routing import JsonRouter

router = JsonRouter(prefix="/api/tour")


@router.put("/{step}", status_code=204)
def note_step(step: Step) -> None:
    """Notes that the caller has done a step of the tour."""
    notify.add_tour_step(step)
