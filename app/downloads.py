"""Files sent straight from the disk: what a run made (Gradio would copy and hash it first), and our own style and scripts."""

import re
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse

from app.security import error
from app.theme import SERVED, STATIC, STATIC_PATH
from training.config_file import to_yaml
from training.fields import parse
from worker import database, runs
from worker.archive import ARCHIVE_FILE, GGUF_FILE, MERGED_FILE
from worker.models import Run, Status
from worker.settings import get_settings

router = APIRouter()


@router.get("/api/runs/{run_id}/adapter.zip", response_model=None)
def adapter(run_id: str) -> Response:
    """What the run trained, as a zip; in ranges too, so that a broken download can go on."""
    run = _run(run_id)
    path = adapter_path(run)
    if path is None:
        elsewhere = "Download it from the machine that trained it, or resume the run."
        fix = elsewhere if run.status.ended else "Wait until it has finished."
        return error(404, "run", run.id, f"Run {run.id} is {run.status.value} and has no adapter here.", fix)
    return FileResponse(path, media_type="application/zip", filename=f"{slug(run.name)}-{run.id}.zip")


@router.get("/api/runs/{run_id}/merged.zip", response_model=None)
def merged(run_id: str) -> Response:
    """The adapter merged into its base model, as a zip, where the run was asked for it."""
    run = _run(run_id)
    path = adapter_path(run, MERGED_FILE)
    if path is None:
        fix = f"Run `lathe export {run.id} --merged --to FOLDER` where it was trained, or set merge_adapter in the next run."
        return error(404, "run", run.id, f"Run {run.id} is {run.status.value} and has no merged model here.", fix)
    return FileResponse(path, media_type="application/zip", filename=f"{slug(run.name)}-{run.id}-merged.zip")


@router.get("/api/runs/{run_id}/model.gguf", response_model=None)
def gguf(run_id: str) -> Response:
    """The model as one GGUF file, where it was exported once."""
    run = _run(run_id)
    path = adapter_path(run, GGUF_FILE)
    if path is None:
        fix = f"Run `lathe export {run.id} --gguf -o FILE.gguf` where it was trained."
        return error(404, "run", run.id, f"Run {run.id} is {run.status.value} and has no GGUF file here.", fix)
    return FileResponse(path, media_type="application/octet-stream", filename=f"{slug(run.name)}-{run.id}.gguf")


@router.get("/api/runs/{run_id}/config.yaml", response_model=None)
def configuration(run_id: str) -> Response:
    """The run's configuration as `lathe run` takes it."""
    run = _run(run_id)
    headers = {"Content-Disposition": f'attachment; filename="{slug(run.name)}-{run.id}.yaml"'}
    return Response(to_yaml(parse(run.config)), media_type="application/yaml", headers=headers)


@router.get(STATIC_PATH + "/{name}", response_model=None)
def static(name: str) -> Response:
    """A style sheet, script or picture of ours. Its address changes with its content, so browsers may keep it."""
    if name not in SERVED:
        return error(404, "path", name, "is not served here.", "")
    return FileResponse(STATIC / name, headers={"Cache-Control": "public, max-age=31536000, immutable"})


def adapter_path(run: Run, name: str = ARCHIVE_FILE) -> Path | None:
    """The zip of a finished run, where this machine has it."""
    path = get_settings().runs_dir / run.id / name
    return path if run.status is Status.FINISHED and path.is_file() else None


def slug(name: str) -> str:
    """A file name made of a run's name: letters, digits, dots and hyphens."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:60] or "run"


def _run(run_id: str) -> Run:
    with database.read() as session:
        return runs.get(session=session, run_id=run_id)
