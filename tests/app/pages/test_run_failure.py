"""The box of a failed run: one cause, one message, one next action."""

from html import unescape

import pytest
from commands import lathe
from played_run import PlayedRun
from prepared import prepared_installation  # noqa: F401
from run_files import checkpoint
from web import client

from training.run_folder.events import OutOfMemory
from training.run_folder.memory_words import summary
from worker.diagnosis.diagnosis import diagnose
from worker.store import database
from worker.store.tables import Run, Status

LOG = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."
STEP_DOWN = {"micro_batch_size": 2, "gradient_accumulation_steps": 4}


def shown(run):
    """The box without what is folded, and all of it."""
    text = client().get(f"/run?id={run.id}").text
    _, mark, rest = text.partition('<section class="panel failure"')
    whole = rest.partition("</section>")[0] if mark else ""
    return whole.partition("<details")[0], whole


@pytest.fixture
def run(home):
    return PlayedRun().claim()


def out_of_memory(run, device):
    report = OutOfMemory(
        rank=0, device=device, phase="training", policy="fail", part="backward", step=3, micro_step=1,
        requested_bytes=3 * 2**20, memory={"allocated": 38 * 2**20, "limit": 40 * 2**20},
    )  # fmt: skip
    error = {
        "message": summary(report),
        "fix": "Resume with less.",
        "step_down": STEP_DOWN,
        "phase": "training",
        "rank": 0,
    }
    diagnosis = diagnose(LOG, config=run.row.config).document()
    return run.report(report).end(Status.FAILED, reason=summary(report), error=error | {"diagnosis": diagnosis})


def test_a_healthy_run_has_no_box(run):
    assert shown(run)[1] == ""


def test_a_result_that_was_not_verified_has_one_action_that_does_the_rest_and_keeps_the_result(run):
    run.end(Status.FINISHED, summary={"steps": 2, "undone": {"verifying": "It was killed.", "pushing": "Refused."}})
    box, _ = shown(run)
    assert "Verifying</th><td>It was killed." in box and "Pushing</th><td>Refused." in box
    assert f'"POST /api/runs/{run.id}/resume"' in unescape(box)
    text = client().get(f"/run?id={run.id}").text
    assert "finished, not verified, not pushed" in text
    lines = lathe("show", run.id).stdout
    assert "It was killed." in lines and f"lathe resume {run.id}" in lines
    answer = client().post(f"/api/runs/{run.id}/resume").json()
    assert (answer["status"], answer["summary"]["steps"], run.row.has_result) == ("queued", 2, True)
    assert client().post(f"/api/runs/{run.id}/stop").json()["status"] == "finished"


def test_a_memory_limit_on_a_cpu_is_not_called_a_gpu(run):
    box, _ = shown(out_of_memory(run, "cpu"))
    assert "Memory limit exceeded" in box
    assert "GPU" not in box


def test_out_of_memory_has_one_action_that_resumes_with_less_memory(run):
    box, whole = shown(out_of_memory(run, "cuda"))
    assert "<h2>Out of GPU memory</h2>" in box
    assert box.count("<button") == 1
    assert f'data-do="POST /api/runs/{run.id}/resume?step_down=true"' in box
    assert "<a " not in box
    assert "Other fixes" in whole


def test_a_diagnosed_failure_has_the_first_fix_and_folds_the_others(run):
    diagnosis = diagnose(LOG, config=run.row.config | {"micro_batch_size": 8}).document()
    run.end(Status.FAILED, error={"message": "OutOfMemoryError", "fix": "Something else.", "diagnosis": diagnosis})
    box, whole = shown(run)
    assert diagnosis["fix"][0] in box
    assert "Something else." not in whole
    assert diagnosis["fix"][1] not in box
    assert diagnosis["fix"][1] in whole


def test_an_error_that_the_user_can_fix_is_shown_as_it_is(run):
    run.end(Status.FAILED, error={"message": "row 3 is empty.", "fix": "Fill it.", "phase": "loading data", "rank": 0})
    box, _ = shown(run)
    assert "Failed while loading data on rank 0" in box
    assert "row 3 is empty." in box
    assert "Fill it." in box


def test_the_message_of_a_failure_stands_once_and_events_and_attempts_only_say_that_it_failed(run):
    out_of_memory(run, "cpu")
    message = run.row.error["message"]
    page = unescape(client().get(f"/run?id={run.id}").text)
    assert page.count(message) == 1
    assert "<span>Failed</span>" in page and 'href="#log"' in page


def test_without_a_checkpoint_the_buttons_say_that_training_begins_again(run):
    out_of_memory(run, "cpu")
    page = client().get(f"/run?id={run.id}").text
    again = f'data-do="POST /api/runs/{run.id}/resume">Train from the start</button>'
    assert again in page and "Train from the start with " in page
    assert 'data-open="resume-on"' not in page
    checkpoint(run.id, 2)
    page = client().get(f"/run?id={run.id}").text
    assert "Train from the start" not in page and "Resume with " in page
    assert '/resume">Resume</button>' in page and 'data-open="resume-on"' in page


def test_a_diverged_run_names_the_step_and_offers_half_the_learning_rate(run):
    run.end(
        Status.DIVERGED,
        reason="The loss or gradient was not finite at step 7. It had no checkpoint with finite weights.",
    )
    box, _ = shown(run)
    assert "not finite at step 7" in box
    assert f"/new?clone={run.id}&amp;learning_rate=0.0001" in box
    page = client().get(f"/run?id={run.id}").text
    assert "status-diverged" in page and "status-finished" not in page and "not finite" in page


def test_after_a_hopeless_learning_rate_the_usual_one_of_the_method_is_proposed_and_why(home):
    run = PlayedRun("ruined", method="full", learning_rate=1.0).claim()
    run.end(Status.DIVERGED, reason="The loss was not finite at step 2.")
    box, _ = shown(run)
    assert f"/new?clone={run.id}&amp;learning_rate=2e-05" in box
    assert "Full fine-tuning usually trains with about 2e-05, and the learning rate was 1." in box


def test_once_the_run_is_queued_again_its_failure_is_one_line(run):
    run.end(Status.FAILED, error={"error": "ValueError", "message": "it broke"})
    box, _ = shown(run)
    assert "it broke" in box
    with database.write() as session:
        session.get(Run, run.id).status = Status.QUEUED
    box, whole = shown(run)
    assert "it broke" not in box and "An earlier attempt failed" in whole and "it broke" in whole


def test_another_user_is_offered_no_button_that_is_refused(prepared):
    page = (
        client().get(f"/run?id={prepared.failed}", headers={"Authorization": f"Bearer {prepared.tokens['bob']}"}).text
    )
    assert "letters" in page and "/resume" not in page and "DELETE" not in page and 'data-open="edit"' not in page
