"""The page Tour: its steps, and what they leave behind."""

from played_run import PlayedRun
from web import client


def test_steps_link_to_the_runs_and_are_done_once_they_were_used(home):
    api = client()
    text = api.get("/start").text
    assert text.count("panel step") == 5 and "panel step done" not in text
    assert "after step 1" in text and "after a run has finished" in text
    run = PlayedRun("sums").claim().end()
    text = api.get("/start").text
    assert f'href="/run?id={run.id}"' in text and f'data-then="/run?id={run.id}"' in text  # its result is not packed
    assert api.put("/api/tour/take_away").status_code == 204
    api.post("/diagnose", data={"log": "CUDA out of memory"}, files={"file": ("", b"")})
    assert api.get("/start").text.count("panel step done") == 3


def test_the_sample_run_is_queued(home):
    started = client().post("/api/runs/sample")
    assert started.status_code == 201
    assert client().get(f"/api/runs/{started.json()['id']}").json()["status"] == "queued"
    assert client().put("/api/tour/another").status_code == 422
