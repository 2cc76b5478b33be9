"""The page Diagnose and the diagnosis on a failed run's page, in a real browser."""

import pytest
from browser import IN_BROWSER, becomes_live, field, says
from patience import eventually
from played_run import PlayedRun

from worker.diagnosis.diagnosis import diagnose
from worker.store.tables import Status

pytestmark = IN_BROWSER

ERROR = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."
HARM = "<script>window.harmed = true</script><img src=x onerror='window.harmed = true'>"


def test_a_pasted_log_is_diagnosed_beside_it(page):
    page.goto("/diagnose")
    says(page, ".empty", "No log yet")
    says(page, ".recent", "The last failed runs and shared logs will be listed here.")
    page.locator("#log textarea").fill(f"starting\n{ERROR}\n{HARM}")
    page.locator("#diagnose").click()
    says(page, ".diagnosis", "cuda_out_of_memory")
    says(page, ".evidence", "[rank1]: torch.OutOfMemoryError")
    assert page.evaluate("window.harmed") is None


def test_a_dropped_log_is_diagnosed_and_not_kept(page, site, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(f"{HARM}: PermissionError: [Errno 13] Permission denied: '{HARM}'\n")
    page.goto("/diagnose")
    page.locator("#log-file input[type=file]").set_input_files(log)
    says(page, ".diagnosis", "permission_denied")
    assert page.evaluate("window.harmed") is None
    assert list(site[1].rglob("train.log")) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("micro-batch", "many", "micro_batch"),
        pytest.param("model", "/no/such", "config.json not found", marks=pytest.mark.nightly),
    ],
)
def test_an_invalid_field_beside_the_log_is_named(page, name, value, message):
    page.goto("/diagnose")
    page.locator("#log textarea").fill(ERROR)
    page.locator(f"#{name} textarea, #{name} input").first.fill(value)
    page.locator("#diagnose").click()
    says(page, ".alert", message)


def test_a_failed_run_shows_its_cause_and_a_click_opens_a_clone_with_the_fix(page):
    run = PlayedRun("sums", micro_batch_size=8, gradient_accumulation_steps=2).claim()
    diagnosis = diagnose(ERROR, config=run.row.config).document()
    run.end(Status.FAILED, error={"message": "OutOfMemoryError", "diagnosis": diagnosis})
    page.goto(f"/run?id={run.id}")
    says(page, ".failure", "Out of GPU memory")
    page.locator(".failure a.button").click()
    says(page, ".banner", "Cloned from sums")
    page.wait_for_function("location.search.indexOf('micro_batch_size') < 0")
    assert page.url.endswith(f"/new?clone={run.id}")
    assert [field(page, name).input_value() for name in ("micro_batch_size", "gradient_accumulation_steps")] == [
        "4",
        "4",
    ]


def test_a_shared_diagnosis_has_a_link_for_everybody_until_it_is_deleted(page, site):
    page.goto("/diagnose")
    page.locator("#log textarea").fill(f"hf_{'a' * 20}\n{HARM}\n{ERROR}")
    page.locator("#diagnose").click()
    says(page, ".diagnosis", "cuda_out_of_memory")
    assert list((site[1] / "diagnoses").glob("*.json")) == []  # nothing is stored before Share is pressed
    page.locator("#share").click()
    says(page, ".shared", "Shared by local")
    page.wait_for_function("location.search.includes('id=')")
    link = page.url
    assert page.locator(".shared [data-copy]").get_attribute("data-copy") == link
    says(page, ".recent", "Log of local", "cuda_out_of_memory")

    page.goto("/diagnose")
    page.locator(".recent a", has_text="Log of local").first.click()
    says(page, ".shared", "Shared by local")
    assert page.url == link
    page.locator(".shared-log summary").click()
    says(page, ".shared-log", "hf_[redacted]", "window.harmed")
    assert page.evaluate("window.harmed") is None

    page.locator(".confirm summary").click()
    page.locator("#delete-shared").click()
    says(page, ".banner", "Its link no longer works.")
    page.goto(link)
    says(page, ".empty", "Shared diagnosis not found", "was deleted")


def test_failed_runs_are_listed_with_their_causes(page):
    diagnosis = diagnose(ERROR).document()
    run = (
        PlayedRun("<b>sums</b>").claim("host/cuda:0").end(Status.FAILED, error={"message": "x", "diagnosis": diagnosis})
    )
    page.goto("/diagnose")

    def lists_it():
        page.reload()
        becomes_live(page)
        return page.locator(".recent", has_text="<b>sums</b>").count()

    eventually(lists_it, every=0.5)  # the list may be two seconds old
    says(page, ".recent", "cuda_out_of_memory")
    page.locator(".recent a").click()
    says(page, ".failure", "Out of GPU memory")
    assert page.url.endswith(f"/run?id={run.id}")
