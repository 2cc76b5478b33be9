"""The REST routes that compare runs: one document as JSON, CSV or Markdown, and their metrics."""

from typing import Annotated

from fastapi import Depends, Query, Response

from app.documents.comparison import texts
from app.documents.comparison.document import Comparison, ComparisonAnswer, as_answer, compare, split_ids
from app.documents.comparison.plotted import Lines, View, plotted
from app.documents.live.plots import Axis
from app.web.rest.routing import Finite, Group, JsonRouter, Reading, sends

router = JsonRouter()

Ids = Annotated[str, Query(max_length=4000, description="ids or their beginnings, separated by commas")]


def compared(session: Reading, runs: Ids, all_settings: bool = False) -> Comparison:
    """The comparison that a request names.

    Raises:
        RunNotFound: an id is of no run; answered with 404.
        TooManyRuns: there are more than 50; answered with 422.
    """
    return compare(session, split_ids(runs), all_settings=all_settings).complete()


Compared = Annotated[Comparison, Depends(compared)]


@router.get("/api/compare")
def compare_runs(session: Reading, runs: Ids, all_settings: bool = False, group: Group = "") -> ComparisonAnswer:
    """Results, settings that differ (with `all_settings` all of them) and other differences of runs; with `group`, their groups."""
    return as_answer(compare(session, split_ids(runs), all_settings=all_settings, group=group).complete())


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


@router.get("/api/compare/series")
def compare_series(
    session: Reading,
    runs: Ids,
    axis: Axis = "step",
    start: Finite = None,
    end: Finite = None,
    points: Annotated[int, Query(ge=10, le=10_000)] = 400,
    first_step: Annotated[int | None, Query(ge=0)] = None,
    width: Annotated[int | None, Query(ge=1)] = None,
) -> Lines:
    """The metrics of runs as lines `RUN/METRIC` of about `points` points, over steps, tokens, epochs or seconds since the start.

    `start` and `end` are on that axis. `first_step` and `width` ask for what a line has grown by: points of `width` steps, as the
    line has them, from the multiple of its width in which its last point lies.
    """
    return Lines(lines=plotted(session, split_ids(runs), View(axis, start, end, points, first_step, width)))


def _file(text: str, media: str, ending: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="comparison.{ending}"'}
    return Response(text, media_type=f"{media}; charset=utf-8", headers=headers)
