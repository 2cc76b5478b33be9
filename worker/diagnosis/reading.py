"""`python -m worker.diagnosis.reading` diagnoses the log on standard input, in a process with limits: a log that somebody sent may
have lines on which hundreds of patterns take minutes."""

import json
from typing import Any

from training.errors import answer_json
from training.model_info.config_json import Dimensions
from worker.diagnosis.diagnosis import diagnose
from worker.diagnosis.log_file import Excerpt


def answer(asked: str) -> dict[str, Any]:
    """The diagnosis of excerpts of a log, as JSON."""
    given = json.loads(asked)
    dimensions = Dimensions(**given["dimensions"]) if given["dimensions"] else None
    excerpts = [Excerpt(**excerpt) for excerpt in given["excerpts"]]
    return diagnose(excerpts, dimensions=dimensions, micro_batch=given["micro_batch"]).document()


if __name__ == "__main__":
    answer_json(answer)
