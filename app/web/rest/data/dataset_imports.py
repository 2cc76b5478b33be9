"""REST routes that import data sets from the hub, the server's folders and the sample, in the background."""

from typing import Annotated, Any, Literal

from fastapi import Body
from pydantic import Field

from app.access import dataset_imports
from app.access.intake import Intake, intakes
from app.web.rest.routing import Answer, BodyForm, JsonRouter, answers
from training.config.fields import ConfigError
from training.errors import Problem


class ImportProblem(Answer):
    """Why an import was refused: the file, the first row (`line`, from 1), and the number of rows with this problem."""

    level: str
    message: str
    fix: str
    file: str | None = None
    line: int | None = None
    field: str | None = None
    rows: int | None = None


class Added(Answer):
    """A data set that an import stored."""

    id: str
    name: str


class ImportAnswer(Answer):
    """An import in the background. It stays listed for two minutes after it is done, and for an hour if it was refused."""

    id: int
    name: str
    owner: str
    state: Literal["checking", "done", "refused"]
    bytes: int = Field(description="size of the file; 0 if it is not known yet")
    since: float = Field(description="seconds since the epoch")
    problems: list[ImportProblem]
    datasets: list[Added]


class ImportList(Answer):
    """The imports of this server, oldest first."""

    imports: list[ImportAnswer]


class Files(Answer):
    """The files of the server that can be imported; `reason` tells why there can be none."""

    files: list[str]
    reason: str


router = JsonRouter(prefix="/api/datasets")


class HubData(BodyForm):
    """A split of a public data set on the hub."""

    name: str = Field(min_length=1, max_length=200, description="owner/name")
    split: str = Field(default="train", max_length=100)
    config: str = Field(default="", max_length=100, description="configuration, if the data set has several")
    revision: str = Field(default="", max_length=100, description="branch, tag or commit; default: the main branch")


class NewImport(BodyForm):
    """What to import: a data set on the hub, a file in a folder of the server (one of `GET /api/datasets/files`), or the sample."""

    hub: HubData | None = None
    file: str | None = Field(default=None, max_length=4000)
    sample: bool = False


@router.get("/files", **answers(Files))
def list_files() -> dict[str, Any]:
    """The files in the server's data folders (LATHE_DATA_FOLDERS), which can be imported without sending them."""
    return {"files": dataset_imports.folder_choices(), "reason": dataset_imports.folder_reason()}


@router.post("/imports", status_code=202, **answers(ImportAnswer, 202))
def start_import(wanted: Annotated[NewImport, Body()]) -> dict[str, Any]:
    """Starts to import a data set from the hub, a folder of the server or the sample; read its state at `/api/datasets/imports/ID`.

    Raises:
        ConfigError: the body names none or several, or this server works offline; answered with 422.
        DataError: the file is in no data folder; answered with 422.
    """
    if (wanted.hub is not None) + (wanted.file is not None) + wanted.sample != 1:
        fix = 'Send {"hub": {"name": "owner/name"}}, {"file": "folder/rows.jsonl"} or {"sample": true}.'
        raise ConfigError([Problem("body", None, "names none or several of hub, file and sample.", fix)])
    return _document(intakes.get(_begun(wanted)))


@router.get("/imports", **answers(ImportList))
def list_imports() -> dict[str, Any]:
    """The imports in the background, those that pages started too, oldest first."""
    return {"imports": [_document(one) for one in intakes.all()]}


@router.get("/imports/{import_id}", **answers(ImportAnswer))
def show_import(import_id: int) -> dict[str, Any]:
    """The state of an import: its data sets once it is done, or its problems."""
    return _document(intakes.get(import_id))


@router.delete("/imports/{import_id}", status_code=204)
def dismiss_import(import_id: int) -> None:
    """Removes an import that has ended from the list; its data sets stay."""
    intakes.get(import_id)
    intakes.dismiss(import_id)


def _begun(wanted: NewImport) -> int:
    if wanted.sample:
        return dataset_imports.from_sample()
    if wanted.hub is None:
        return dataset_imports.from_folder(wanted.file or "")
    if reason := dataset_imports.hub_reason():
        message, _, fix = reason.partition(". ")
        raise ConfigError([Problem("hub", wanted.hub.name, f"cannot be downloaded. {message}.", fix)])
    hub = wanted.hub
    return dataset_imports.from_hub(hub.name.strip(), hub.split.strip(), hub.config.strip(), hub.revision.strip())


def _document(intake: Intake) -> dict[str, Any]:
    values = {name: getattr(intake, name) for name in ("id", "name", "owner", "state", "bytes", "since")}
    stored = [{"id": dataset_id, "name": name} for dataset_id, name in intake.added]
    return values | {"problems": list(intake.problems), "datasets": stored}
