"""Tables of cases as one test each: all rows share one setup, and fail one by one as subtests."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def table(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test as one subtest for each row; `names` are the parameters that a row gives. Several tables give their product.

    Each row has its own folder as `tmp_path`, and shares the other fixtures. A row cannot be skipped.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        one = isinstance(names, str)
        values = [(row,) if one else tuple(row) for row in rows]
        inner_names, inner_rows, function = getattr(test, "table", ((), [()], test))
        given = (*([names] if one else names), *inner_names)
        cases = [(*row, *inner) for row in values for inner in inner_rows]

        @wraps(function)
        def run(subtests: Any, **fixtures: Any) -> None:
            for number, case in enumerate(cases, 1):
                arguments = dict(zip(given, case, strict=True))
                own = {}
                if "tmp_path" in fixtures:
                    own["tmp_path"] = fixtures["tmp_path"] / f"row {number}"
                    own["tmp_path"].mkdir()
                with subtests.test(**arguments):
                    function(**fixtures | own | arguments)

        parameters = inspect.signature(function).parameters.values()
        kind = inspect.Parameter.KEYWORD_ONLY
        fixtures = [inspect.Parameter(parameter.name, kind) for parameter in parameters if parameter.name not in given]
        subtests = inspect.Parameter("subtests", kind)
        run.__signature__ = inspect.Signature([*fixtures, subtests])  # type: ignore[attr-defined]
        run.table = (given, cases, function)  # type: ignore[attr-defined]
        return run

    return decorate
