"""Files sent from the disk: results of runs (Gradio would copy and hash them first), and our own style sheets and scripts."""

import re
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse

from app.web.security import error
from app.web.theme import SERVED, STATIC, STATIC_PATH
from training.config.fields import parse
from training.config.yaml_file import to_yaml
from training.run_folder.paths import ARCHIVE_FILE, GGUF_FILE, MERGED_FILE
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import Run, Status

router = APIRouter()


@router.get("/api/runs/{run_id}/adapter.zip", response_model=None)
def adapter(run_id: str) -> Response:
    """The run's adapter or model as a zip, also in ranges, so that an interrupted download can resume."""
    run = _run(run_id)
    elsewhere = "Download it from the machine that trained it, or resume the run."
    fix = elsewhere if run.status.ended else "Wait until it has finished."
    return _file(run, adapter_path(run), "adapter", ".zip", fix)


@router.get("/api/runs/{run_id}/merged.zip", response_model=None)
def merged(run_id: str) -> Response:
    """The adapter merged into its base model, as a zip, if the run or an export has created it."""
    run = _run(run_id)
    fix = (
        f"Run `lathe export {run.id} --merged --to FOLDER` where it was trained, or set merge_adapter in the next run."
    )
    return _file(run, adapter_path(run, MERGED_FILE), "merged model", "-merged.zip", fix)


@router.get("/api/runs/{run_id}/model.gguf", response_model=None)
def gguf(run_id: str) -> Response:
    """The model as a GGUF file, if it has been exported."""
    run = _run(run_id)
    fix = f"Run `lathe export {run.id} --gguf -o FILE.gguf` where it was trained."
    return _file(run, adapter_path(run, GGUF_FILE), "GGUF file", ".gguf", fix)


def _file(run: Run, path: Path | None, what: str, ending: str, fix: str) -> Response:
    """The file of a run under a name that tells the run, or 404 with the fix."""
    if path is None:
        return error(404, "run", run.id, f"Run {run.id} is {run.status.value} and has no {what} here.", fix)
    media = "application/zip" if ending.endswith(".zip") else "application/octet-stream"
    return FileResponse(path, media_type=media, filename=f"{slug(run.name)}-{run.id}{ending}")


@router.get("/api/runs/{run_id}/config.yaml", response_model=None)
def configuration(run_id: str) -> Response:
    """The run's configuration as a file for `lathe run`."""
    run = _run(run_id)
    headers = {"Content-Disposition": f'attachment; filename="{slug(run.name)}-{run.id}.yaml"'}
    return Response(to_yaml(parse(run.config)), media_type="application/yaml", headers=headers)


@router.get(STATIC_PATH + "/{name}", response_model=None)
def static(name: str) -> Response:
    """One of our style sheets, scripts or images. Its address changes with its content, so browsers can cache it."""
    if name not in SERVED:
        return error(404, "path", name, "is not served here.", "")
    return FileResponse(STATIC / name, headers={"Cache-Control": "public, max-age=31536000, immutable"})


def adapter_path(run: Run, name: str = ARCHIVE_FILE) -> Path | None:
    """The zip of a finished run, None if this machine does not have it."""
    path = get_settings().runs_dir / run.id / name
    return path if run.status is Status.FINISHED and path.is_file() else None


def slug(name: str) -> str:
    """A file name made of a run's name: letters, digits, dots and hyphens."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:60] or "run"


def _run(run_id: str) -> Run:
    with database.read() as session:
        return runs.get(session=session, run_id=run_id)
