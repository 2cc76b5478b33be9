"""REST routes for settings before a run: its memory, its trainable parameters, its rows and its problems."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Body, Query
from fastapi.responses import PlainTextResponse

from app.access import callers
from app.documents import ErrorEntry
from app.documents.before_run import (
    ConfigCheck,
    ConflictAnswer,
    ForecastAnswer,
    HeldOutCheck,
    Rendering,
    Targets,
)
from app.format import forecast_text as words
from app.format import rows as row_words
from app.web.rest.openapi import RUN_BODY
from app.web.rest.routing import JsonRouter, ShortQuery, settings_object
from training import rules
from training.config.choices import Wanted
from training.config.fields import parse
from training.config.run_config import RunConfig, on_gpus
from training.config.yaml_file import to_yaml
from worker.forecasts import leaks, prices, requested, shapes
from worker.runs import checks, rows_check
from worker.supervision import launcher

router = JsonRouter()
_SIMULATE = "Also simulate a training step (up to a minute); by default where the formula cannot decide."


@router.post("/api/forecasts", openapi_extra=RUN_BODY, response_model=ForecastAnswer)
def forecast_run(
    values: Annotated[Any, Body()],
    gpu: ShortQuery = None,
    gpus: Annotated[int | None, Query(ge=1, le=1024)] = None,
    host_memory: Annotated[float | None, Query(ge=0.5, le=2**20)] = None,
    simulate: Annotated[bool | None, Query(description=_SIMULATE)] = None,
    fetch_config: Annotated[bool, Query(description="First download the model's config.json from the hub.")] = False,
    solve: Annotated[list[Wanted], Query(description="Also find the most that fits, which takes up to a minute.")] = [],  # noqa: B006
    form: Annotated[Literal["json", "text"], Query(description="json, or text for people.")] = "json",
) -> dict[str, Any] | PlainTextResponse:
    """The memory forecast of a run, and settings that fit. The body is a JSON object of settings; data is optional."""
    typed = settings_object(values)
    settled = callers.settled(on_gpus(parse({"data": "none"} | typed), gpus, typed))
    response = requested.respond(
        settled, prices.of_user(callers.current().name),
        gpu=gpu, host_gib=host_memory, simulate=simulate, solve=solve, fetch_config=fetch_config,
    )  # fmt: skip
    return PlainTextResponse(words.response_page(response)) if form == "text" else response.document()


@router.post("/api/checks", openapi_extra=RUN_BODY)
def check_run(values: Annotated[Any, Body()]) -> ConfigCheck:
    """Whether a run could be queued: problems, and conflicts of its settings with their fixes. Queues and stores nothing."""
    config = parse(settings_object(values))
    settled = callers.settled(config)
    problems, conflicts = checks.problems(settled), rules.check(config, settled.machine)
    return ConfigCheck(
        ready=not problems and not any(conflict.blocking for conflict in conflicts),
        problems=[ErrorEntry.model_validate(problem) for problem in problems],
        conflicts=[ConflictAnswer.model_validate(conflict) for conflict in conflicts],
        global_batch_size=config.global_batch_size,
        command=launcher.preview(config, on_cpu=settled.machine.kind == "cpu"),
        yaml=to_yaml(config),
        held_out=None if problems else _held_out(settled.config),
    )


def _held_out(config: RunConfig) -> HeldOutCheck | None:
    found = leaks.of_run(config)
    return HeldOutCheck.model_validate(asdict(found)) if found else None


@router.post("/api/renderings", openapi_extra=RUN_BODY, response_model=Rendering)
def render_rows(
    values: Annotated[Any, Body()],
    form: Annotated[Literal["json", "text"], Query(description="json, or text for people.")] = "json",
) -> dict[str, Any] | PlainTextResponse:
    """Some rows of a run's data as it would train on them, token by token, and their faults (docs/templates.md). The body is a
    JSON object of settings. Queues nothing.
    """
    checked = rows_check.check_rows(parse(settings_object(values)), callers.current().allowed)
    return PlainTextResponse(row_words.page(checked)) if form == "text" else rows_check.as_document(checked)


@router.post("/api/targets", openapi_extra=RUN_BODY)
def list_targets(values: Annotated[Any, Body()]) -> Targets:
    """The trainable parameters of a run, and the modules that carry them. The body is a JSON object of settings; data is optional.

    Builds the model without its weights, which takes some seconds.
    """
    settled = callers.settled(parse({"data": "none"} | settings_object(values)))
    return Targets.model_validate(shapes.list_targets(settled))
