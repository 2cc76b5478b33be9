"""A run as a document."""

import json

from played_run import PlayedRun
from prepared import STARTER

from app.documents.run import document
from worker.store import database


def test_a_waiting_run_that_does_not_fit_says_so(home, tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{row}", "completion": "yes"}) + "\n" for row in range(8)))
    fitting, large = (
        PlayedRun(model=str(STARTER), data=str(data), eval_split=0, **more) for more in ({}, {"memory_limit": 1})
    )
    with database.read() as session:
        said = [document(session, run.id).queue.memory for run in (fitting, large)]
    assert said[0] == ""
    assert "of 1.0 MiB on each process" in said[1]
