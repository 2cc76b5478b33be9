"""The REST routes that compare runs: one document as JSON, CSV or Markdown, and their metrics."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from app.documents.comparison import texts
from app.documents.comparison.document import Comparison, as_json, compare, split_ids
from app.documents.comparison.plotted import Axis, View, plotted
from app.web.rest.routing import Answer, Finite, answers, sends
from worker.store import database
from worker.store.tables import Status


class ComparedRun(Answer):
    """A run of a comparison."""

    id: str
    name: str
    status: Status
    method: str


class ComparisonAnswer(Answer):
    """Results, settings and other differences of runs. Each list has a value for each run, in their order; null: it has none."""

    runs: list[ComparedRun]
    measures: dict[str, list[Any]] = Field(description="results")
    best: dict[str, list[int]] = Field(description="positions, from 0, of the best value of a result")
    settings: dict[str, list[Any]] = Field(description="settings that differ, or all")
    circumstances: dict[str, list[Any]] = Field(description="what else differs, such as devices and attempts")
    against_first: list[dict[str, Any]] = Field(
        description="what answers to the same held-out rows show against the first run"
    )
    labels: dict[str, str] = Field(description="each key in words")


class PlotLine(Answer):
    """A metric of a run: places on the axis, values, and the extremes of each point (null if they equal the values).

    `step` is the last one of the last point, `width` the number of steps that a point covers.
    """

    x: list[float]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    step: int
    width: int


class Lines(Answer):
    """The metrics of runs by RUN/METRIC."""

    lines: dict[str, PlotLine]


router = APIRouter()


def compared(
    runs: Annotated[str, Query(description="ids or their beginnings, separated by commas")], all_settings: bool = False
) -> Comparison:
    """The comparison that a request names.

    Raises:
        RunNotFound: an id is of no run; answered with 404.
        TooManyRuns: there are more than 50; answered with 422.
    """
    with database.read() as session:
        return compare(session, split_ids(runs), all_settings=all_settings).complete()


Compared = Annotated[Comparison, Depends(compared)]


@router.get("/api/compare", **answers(ComparisonAnswer))
def compare_runs(comparison: Compared) -> dict[str, Any]:
    """Results, settings that differ (with `all_settings` all of them) and other differences of runs."""
    return as_json(comparison)


@router.get("/api/compare.csv", **sends("text/csv", "A row for each run."))
def compare_as_csv(comparison: Compared) -> Response:
    """The comparison as CSV, a row for each run."""
    return _file(texts.as_csv(comparison), "text/csv", "csv")


@router.get("/api/compare.md", **sends("text/markdown", "Tables."))
def compare_as_markdown(comparison: Compared) -> Response:
    """The comparison as Markdown tables."""
    return _file(texts.markdown(comparison), "text/markdown", "md")


@router.get("/api/compare.txt", **sends("text/plain", "Columns of text."))
def compare_as_text(comparison: Compared) -> Response:
    """The comparison as columns for a terminal."""
    return _file(texts.plain(comparison), "text/plain", "txt")


@router.get("/api/compare/series", **answers(Lines))
def compare_series(
    runs: Annotated[str, Query(description="ids or their beginnings, separated by commas")],
    axis: Axis = "step",
    start: Finite = None,
    end: Finite = None,
    points: Annotated[int, Query(ge=10, le=10_000)] = 400,
    first_step: Annotated[int | None, Query(ge=0)] = None,
    width: Annotated[int | None, Query(ge=1)] = None,
) -> dict[str, Any]:
    """The metrics of runs as lines `RUN/METRIC` of about `points` points, over steps, tokens, epochs or seconds since the start.

    `start` and `end` are on that axis. `first_step` and `width` ask for what a line has grown by: points of `width` steps, as the
    line has them, from the multiple of its width in which its last point lies.

    Raises:
        RunNotFound: an id is of no run; answered with 404.
    """
    with database.read() as session:
        return {"lines": plotted(session, split_ids(runs), View(axis, start, end, points, first_step, width))}


def _file(text: str, media: str, ending: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="comparison.{ending}"'}
    return Response(text, media_type=f"{media}; charset=utf-8", headers=headers)
