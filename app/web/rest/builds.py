"""REST routes of builds: forms of a run's result that are made on request."""

from app.access import callers
from app.access.permissions import OwnRun
from app.documents.results.outputs import BuildAnswer, BuildList, built
from app.web.rest.routing import JsonRouter, Reading
from worker import builds as building
from worker.store import builds, database, runs
from worker.store.tables import Build

router = JsonRouter()


@router.get("/api/runs/{run_id}/builds")
def list_builds(run_id: str, session: Reading) -> BuildList:
    """The builds of a run, newest first."""
    run = runs.get(session=session, run_id=run_id)
    return BuildList(builds=[built(run, item) for item in builds.of_run(session=session, run_id=run.id)])


@router.get("/api/runs/{run_id}/builds/{result_form}")
def show_build(run_id: str, result_form: str, session: Reading) -> BuildAnswer:
    """The build of a form."""
    run = runs.get(session=session, run_id=run_id)
    return built(run, builds.get(session=session, run_id=run.id, form=result_form))


@router.post("/api/runs/{run_id}/builds/{result_form}", status_code=201)
def create_build(own: OwnRun, result_form: str) -> BuildAnswer:
    """Queues the build of a form of an ended run's result, or answers the one that is queued or running: merged, gguf, gguf-TYPE
    (such as gguf-Q8_0), gguf-adapter, checkpoint-N (its adapter or model), or checkpoint for the newest one.
    """
    return _document(building.submit(own, result_form, owner=callers.current().name))


@router.post("/api/runs/{run_id}/builds/{result_form}/stop")
def stop_build(own: OwnRun, result_form: str) -> BuildAnswer:
    """Stops a build. What it has written is deleted."""
    with database.write() as session:
        build = builds.request_stop(session=session, run_id=own, form=result_form)
    return _document(build)


def _document(item: Build) -> BuildAnswer:
    with database.read() as session:
        run = runs.get(session=session, run_id=item.run_id)
        return built(run, builds.get(session=session, run_id=run.id, form=item.form))
