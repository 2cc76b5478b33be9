"""REST routes for settings before a run: its memory, its trainable parameters, and configurations of other programs."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Body, Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from app.access import callers
from app.format import forecast as forecast_words
from app.format import templates as template_words
from app.web.rest.openapi import RUN_BODY, ErrorEntry, raw_body
from app.web.rest.routing import Answer, JsonRouter, answers, settings_object
from training import rules
from training.config.fields import parse
from training.config.run_config import on_gpus
from training.config.yaml_file import to_yaml
from training.forecast.formula.activations import Batch
from training.forecast.solve import Wanted
from training.foreign.translate import import_text
from training.template_check.findings import Finding, ShownRow
from worker.forecasts import prices, requested, shapes
from worker.runs import checks, rows_check
from worker.supervision import launcher


class Group(Answer):
    """Equal modules: their name with * for the layer number, their count, and the shape of each as "in -> out"."""

    pattern: str
    count: int
    shape: str


class Targets(Answer):
    """Counts of parameters, and the modules of the model in groups."""

    trainable: int
    total: int
    matched: list[Group] = Field(description="modules that carry the adapter")
    whole: list[Group] = Field(description="modules that train in full")
    others: list[Group] = Field(description="the remaining linear layers")


class Proposal(Answer):
    """Settings that fit: the changes, their speed relative to the settings asked for, and what they cost."""

    changes: dict[str, Any]
    relative_speed: float
    cost: str
    fits: bool
    peak_bytes: int
    host_bytes: int


class SpeedAnswer(Answer):
    """How long a run takes and what it costs, each from the best to the worst case; null without a basis, which `notes` name."""

    tokens_per_second: list[float] | None
    seconds_per_step: list[float] | None
    steps: int | None
    hours: list[float] | None
    kwh: list[float] | None = Field(description="of the GPUs")
    cost: list[float] | None = Field(description="by the caller's prices of a GPU hour and a kWh")
    notes: list[str]


class SolvedAnswer(Answer):
    """The most that fits: the value of a setting, the changes that apply it, its memory in bytes."""

    setting: str
    value: int | str | None = Field(description="null if nothing fits; `reason` says why")
    changes: dict[str, Any]
    bounded: bool = Field(description="more makes no difference")
    confirmed: bool | None = Field(description="by a simulated step; null if none was simulated")
    reason: str
    peak_bytes: int | None
    limit_bytes: int | None


class ForecastAnswer(Answer):
    """Whether a run fits, in bytes. Each moment of a step has its parts; `peak_bytes` is the largest one's."""

    fits: bool
    reasons: list[str]
    peak_bytes: int
    moment: str
    parts: dict[str, int]
    close: bool = Field(
        description="true if the limit is within the error of the formula, so that a simulated step decides"
    )
    moments: dict[str, int]
    host_bytes: int = Field(description="the most host memory that the ranks of a machine need")
    host_moments: dict[str, int] = Field(
        description="the same while the weights are loaded, in training, and while a result is saved or a checkpoint loaded"
    )
    copies_bytes: int = Field(description="the part of host_bytes in training for asynchronous checkpoints")
    nvme_bytes: int
    limit_bytes: int | None = Field(description="of the GPU; null without one")
    host_limit_bytes: int | None
    trainable_parameters: int
    total_parameters: int
    batch: Batch
    advice: list[Proposal]
    first_step: dict[str, Any] | None = Field(description="the changes that save memory first; null if the run fits")
    notes: list[str]
    worst_batch: dict[str, Any] | None = Field(
        description="the largest batch of the data set; null if it is not tokenized"
    )
    simulated: dict[str, Any] | None = None
    speed: SpeedAnswer
    solved: list[SolvedAnswer] | None = None


class ConflictAnswer(Answer):
    """Settings that cannot (`blocking`) or should not be combined, the reason, and the `changes` that fix it."""

    settings: list[str]
    reason: str
    fix: str
    changes: dict[str, Any]
    blocking: bool


class ConfigCheck(Answer):
    """Whether a run could be queued, and what it would be started with."""

    ready: bool
    problems: list[ErrorEntry]
    conflicts: list[ConflictAnswer]
    global_batch_size: int
    command: str = Field(description="the command that starts the training")
    yaml: str = Field(description="the settings as a file for `lathe run`")


class TranslatedKey(Answer):
    """A key of the file, what became of it, and the settings that it gives."""

    key: str
    value: Any
    outcome: str
    settings: dict[str, Any]
    note: str


class Translation(Answer):
    """A configuration of another program as settings of a run; `missing` are required settings that it does not give."""

    programs: list[str]
    settings: dict[str, Any]
    missing: list[str]
    keys: list[TranslatedKey]


class RenderedSet(Answer):
    """A data set as a run would train on it: the faults, errors first, the number of rows checked, and the first rows as tokens."""

    name: str
    findings: list[Finding]
    checked: int = Field(description="rows checked token by token")
    rendered: int = Field(description="rows rendered, in which each text of the row was looked for")
    complete: bool = Field(description="false if time was too short to render all")
    rows: list[ShownRow]


class Rendering(Answer):
    """The rendered rows of a run's training data sets."""

    data_sets: list[RenderedSet]


router = JsonRouter()
_SIMULATE = "Also simulate a training step (up to a minute); by default where the formula cannot decide."


@router.post("/api/forecasts", openapi_extra=RUN_BODY, **answers(ForecastAnswer))
def forecast_run(
    values: Annotated[Any, Body()],
    gpu: str | None = None,
    gpus: Annotated[int | None, Query(ge=1, le=1024)] = None,
    host_memory: Annotated[float | None, Query(ge=0.5, le=2**20)] = None,
    simulate: Annotated[bool | None, Query(description=_SIMULATE)] = None,
    fetch_config: Annotated[bool, Query(description="First download the model's config.json from the hub.")] = False,
    solve: Annotated[list[Wanted], Query(description="Also find the most that fits, which takes up to a minute.")] = [],  # noqa: B006
    form: Annotated[Literal["json", "text"], Query(description="json, or text for people.")] = "json",
) -> dict[str, Any] | PlainTextResponse:
    """The memory forecast of a run, and settings that fit. The body is a JSON object of settings; data is optional.

    Raises:
        ConfigError: settings, GPU or model are invalid; answered with 422.
    """
    typed = settings_object(values)
    settled = callers.settled(on_gpus(parse({"data": "none"} | typed), gpus, typed))
    response = requested.respond(
        settled, prices.of_user(callers.current().name),
        gpu=gpu, host_gib=host_memory, simulate=simulate, solve=solve, fetch_config=fetch_config,
    )  # fmt: skip
    return PlainTextResponse(forecast_words.response_page(response)) if form == "text" else response.document()


@router.post("/api/checks", openapi_extra=RUN_BODY, **answers(ConfigCheck))
def check_run(values: Annotated[Any, Body()]) -> dict[str, Any]:
    """Whether a run could be queued: problems, and conflicts of its settings with their fixes. Queues and stores nothing.

    Raises:
        ConfigError: a setting has an invalid value; answered with 422 and all problems.
    """
    config = parse(settings_object(values))
    settled = callers.settled(config)
    problems, conflicts = checks.problems(settled), rules.check(config, settled.machine)
    return {
        "ready": not problems and not any(conflict.blocking for conflict in conflicts),
        "problems": [vars(problem) for problem in problems],
        "conflicts": [asdict(conflict) for conflict in conflicts],
        "global_batch_size": config.global_batch_size,
        "command": launcher.preview(config, on_cpu=settled.machine.kind == "cpu"),
        "yaml": to_yaml(config),
    }


@router.post("/api/renderings", openapi_extra=RUN_BODY, **answers(Rendering))
def render_rows(
    values: Annotated[Any, Body()],
    form: Annotated[Literal["json", "text"], Query(description="json, or text for people.")] = "json",
) -> dict[str, Any] | PlainTextResponse:
    """Some rows of a run's data as it would train on them, token by token, and their faults (docs/templates.md). The body is a
    JSON object of settings. Queues nothing.

    Raises:
        ConfigError: settings are invalid, or the rows of this run cannot be checked; answered with 422.
    """
    checked = rows_check.check_rows(parse(settings_object(values)), callers.current().allowed)
    return PlainTextResponse(template_words.page(checked)) if form == "text" else rows_check.as_document(checked)


@router.post("/api/targets", openapi_extra=RUN_BODY, **answers(Targets))
def list_targets(values: Annotated[Any, Body()]) -> dict[str, Any]:
    """The trainable parameters of a run, and the modules that carry them. The body is a JSON object of settings; data is optional.

    Builds the model without its weights, which takes some seconds.

    Raises:
        ConfigError: settings or model are invalid, or no module matches; answered with 422.
    """
    return shapes.list_targets(callers.settled(parse({"data": "none"} | settings_object(values))))


@router.post(
    "/api/imports", openapi_extra=raw_body("text/plain", "The text of the configuration."), **answers(Translation)
)
async def import_configuration(request: Request) -> dict[str, Any]:
    """A configuration of another program, in the body, as the settings of a run, key by key. Files that it names are not read.

    Raises:
        UserError: the body is a configuration of no known program; answered with 422.
    """
    text = (await request.body()).decode("utf-8", "replace")
    return await run_in_threadpool(lambda: import_text(text, None, "body").document())
