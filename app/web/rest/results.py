"""REST routes of the results of runs: their files, sent from the disk, and how they are used."""

import re
from pathlib import Path
from typing import Annotated

from fastapi import Query, Response
from fastapi.responses import FileResponse, StreamingResponse

from app.access import callers
from app.access.permissions import OwnRun
from app.documents.results import outputs as output_documents
from app.documents.results.outputs import BuildAnswer, BuildList, Outputs, built
from app.format.run_text import result_noun
from app.web.rest.routing import MOST, JsonRouter, Reading, sends
from app.web.security import error
from training.config.yaml_file import to_yaml
from training.run_folder.derived import ADAPTER_GGUF_FILE, GgufType
from training.run_folder.paths import ANSWERS_FILE, ARCHIVE_FILE, CARD_FILE, MERGED_FILE, saved_result
from worker import builds as building
from worker.archives import run_archive
from worker.results import fetching
from worker.results.results import file_of
from worker.settings import get_settings
from worker.store import builds, database, runs
from worker.store.tables import Build, Run

router = JsonRouter()
_BUILD = "Build it on the run's page, or POST /api/runs/RUN/builds/FORM"
_TYPE = "Format of the matrices; trained: as trained."
_MEDIA = {".zip": "application/zip", ".md": "text/markdown; charset=utf-8", ".jsonl": "application/jsonl"}


@router.get("/api/runs/{run_id}/adapter.zip", **sends("application/zip", "The adapter or model."))
@router.get("/api/runs/{run_id}/model.zip", **sends("application/zip", "The adapter or model."))
def adapter(run_id: str) -> Response:
    """The run's adapter or, after full fine-tuning, model as a zip, also in ranges, so that an interrupted download can resume.

    Both names work for both.
    """
    run = _run(run_id)
    elsewhere = "Download it from the machine that trained it, or resume the run."
    fix = elsewhere if run.status.ended else "Wait until it has finished."
    return _file(run, adapter_path(run), result_noun(run.config), ".zip", fix)


@router.get("/api/runs/{run_id}/merged.zip", **sends("application/zip", "The merged model."))
def merged(run_id: str) -> Response:
    """The adapter merged into its base model, as a zip, if the run or an export has created it."""
    return _built(run_id, MERGED_FILE, "merged model", "-merged.zip", "--merged --to FOLDER")


@router.get("/api/runs/{run_id}/model.gguf", **sends("application/octet-stream", "The GGUF file."))
def gguf(run_id: str, kind: Annotated[GgufType, Query(alias="type", description=_TYPE)] = GgufType.TRAINED) -> Response:
    """The model as a GGUF file of a type, if it has been built."""
    option, what = "", "GGUF file"
    if kind is not GgufType.TRAINED:
        option, what = f" --type {kind.value}", f"GGUF file of type {kind.value}"
    return _built(run_id, kind.file, what, kind.file.removeprefix("model"), f"--gguf{option} -o FILE.gguf")


@router.get("/api/runs/{run_id}/adapter.gguf", **sends("application/octet-stream", "The adapter as a GGUF file."))
def gguf_adapter(run_id: str) -> Response:
    """The LoRA adapter as a GGUF file, if it has been built."""
    return _built(run_id, ADAPTER_GGUF_FILE, "GGUF adapter", "-adapter.gguf", "--gguf --adapter -o FILE.gguf")


@router.get("/api/runs/{run_id}/checkpoint.zip", **sends("application/zip", "The adapter or model."))
def checkpoint(run_id: str, step: Annotated[int, Query(ge=0, le=MOST)]) -> Response:
    """The adapter or model of the checkpoint of a step, if it has been built."""
    form = f"checkpoint-{step}"
    run = _run(run_id, file_of(form))
    path = get_settings().runs_dir / run.id / file_of(form)
    what = f"{result_noun(run.config)} of checkpoint {step}"
    return _file(run, path, what, f"-{form}.zip", f"{_BUILD}.")


@router.get("/api/runs/{run_id}/card.md", **sends("text/markdown", "The model card."))
def card(run_id: str) -> Response:
    """The model card of the result, as Markdown."""
    run = _run(run_id)
    folder = saved_result(get_settings().runs_dir / run.id)
    return _file(
        run, folder and folder / CARD_FILE, "model card", "-card.md", "The machine that trained it has the card."
    )


@router.get("/api/runs/{run_id}/answers.jsonl", **sends("application/jsonl", "A JSON object for each row."))
def row_answers(run_id: str) -> Response:
    """The answers to held-out rows before and after training, one JSON object a row."""
    run = _run(run_id)
    path = get_settings().runs_dir / run.id / ANSWERS_FILE
    return _file(run, path, "answers", "-answers.jsonl", "Set answer_rows in the next run.")


@router.get("/api/runs/{run_id}/archive.zip", **sends("application/zip", "The archive."))
def archive(run_id: str) -> Response:
    """The whole run as one file for `lathe restore`."""
    run = _run(run_id)
    headers = {"Content-Disposition": f'attachment; filename="{slug(run.name)}-{run.id}.lathe.zip"'}
    return StreamingResponse(run_archive.packed(run.id), media_type="application/zip", headers=headers)


@router.get("/api/runs/{run_id}/outputs")
def outputs(run_id: str, session: Reading) -> Outputs:
    """Every form of the run's result, and snippets that use it."""
    return output_documents.document(session, runs.get(session=session, run_id=run_id))


def _built(run_id: str, name: str, what: str, ending: str, options: str) -> Response:
    """A file that is built on request; `options` are those of `lathe export`."""
    run = _run(run_id, name)
    fix = f"{_BUILD} (`lathe export {run.id} {options}`)."
    return _file(run, adapter_path(run, name), what, ending, fix)


def _file(run: Run, path: Path | None, what: str, ending: str, fix: str) -> Response:
    """The file of a run under a name that tells the run, or 404 with the fix."""
    if path is None or not path.is_file():
        return error(404, "run", run.id, f"Run {run.id} is {run.status.value} and has no {what} here.", fix)
    media = _MEDIA.get(path.suffix, "application/octet-stream")
    return FileResponse(path, media_type=media, filename=f"{slug(run.name)}-{run.id}{ending}")


@router.get("/api/runs/{run_id}/config.yaml", **sends("application/yaml", "Settings of a run as YAML."))
def configuration(run_id: str, session: Reading) -> Response:
    """The run's configuration as a file for `lathe run`."""
    run = runs.get(session=session, run_id=run_id)
    headers = {"Content-Disposition": f'attachment; filename="{slug(run.name)}-{run.id}.yaml"'}
    return Response(to_yaml(run.asked), media_type="application/yaml", headers=headers)


def adapter_path(run: Run, name: str = ARCHIVE_FILE) -> Path | None:
    """The zip of a finished run, None if this machine does not have it."""
    path = get_settings().runs_dir / run.id / name
    return path if run.has_result and path.is_file() else None


def slug(name: str) -> str:
    """A file name made of a run's name: letters, digits, dots and hyphens."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:60] or "run"


def _run(run_id: str, built: str = "") -> Run:
    """The run, whose files are downloaded from the object store if they are only there, and so is the file `built` on request."""
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
    fetching.fetch(run)
    if built:
        fetching.fetch_built(run, built)
    return run


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
