"""Parameters that several routes share, with their bounds."""

from typing import Annotated

from fastapi import Header, Query

from worker.store import submissions

MOST = 2**53 - 1
"""The largest number that JSON carries without loss everywhere; databases hold larger ones."""

Offset = Annotated[int, Query(ge=0, le=MOST)]
After = Annotated[int, Query(ge=0, le=MOST)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Step = Annotated[int | None, Query(ge=-MOST, le=MOST)]
Finite = Annotated[float | None, Query(allow_inf_nan=False)]
MicroBatch = Annotated[int | None, Query(ge=1, le=2**20)]

Key = Annotated[
    str | None,
    Header(
        alias=submissions.HEADER,
        min_length=1,
        max_length=submissions.LONGEST_KEY,
        description="Any text of your choice. A repeated request with the same key answers the first run or sweep, for a day.",
    ),
]
"""The header of requests that queue something."""
