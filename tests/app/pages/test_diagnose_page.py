"""The page Diagnose and the diagnosis on a failed run's page, in a real browser."""

from browser import IN_BROWSER, field, says
from played_run import PlayedRun
from sqlalchemy import text
from web import client

from worker.diagnosis.diagnosis import diagnose
from worker.store import database
from worker.store.tables import Status

pytestmark = IN_BROWSER

ERROR = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."
HARM = "<script>window.harmed = true</script><img src=x onerror='window.harmed = true'>"


def test_a_pasted_log_is_diagnosed_beside_it(page):
    page.goto("/diagnose")
    says(page, ".empty", "No log yet")
    says(page, ".recent", "The last failed runs and shared logs will be listed here.")
    page.locator("textarea[name=log]").fill(f"starting\n{ERROR}\n{HARM}")
    page.get_by_role("button", name="Diagnose").click()
    says(page, ".diagnosis", "cuda_out_of_memory")
    says(page, ".evidence", "[rank1]: torch.OutOfMemoryError")
    assert page.evaluate("window.harmed") is None


def posted(fields):
    """The answer to the form of the page."""
    return client().post("/diagnose", data=fields, files={"file": ("", b"")}, follow_redirects=False)


def test_a_dropped_log_is_diagnosed_and_not_kept(page, site, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(f"{HARM}: PermissionError: [Errno 13] Permission denied: '{HARM}'\n")
    page.goto("/diagnose")
    page.locator("input[type=file]").set_input_files(log)
    says(page, ".diagnosis", "permission_denied")
    assert page.evaluate("window.harmed") is None
    assert list(site[1].rglob("train.log")) == []


def test_an_invalid_field_beside_the_log_is_named_and_what_was_typed_stays(home):
    for name, value, message in (
        ("micro_batch", "many", "micro_batch"),
        ("model", "/no/such", "config.json not found"),
    ):
        html = posted({"log": ERROR, name: value}).text
        assert f"<b>{name}</b>" in html and message in html and f'value="{value}"' in html and ERROR in html


def test_without_a_script_the_form_is_answered_by_the_page(home):
    html = posted({"log": f"{ERROR}\n{HARM}"}).text
    assert "cuda_out_of_memory" in html and "[rank1]: torch.OutOfMemoryError" in html and HARM not in html
    assert "<b>log</b> is empty." in posted({"log": " "}).text
    shared = posted({"log": ERROR, "share": "1"})
    assert shared.status_code == 303
    assert "Shared by <b>local</b>" in client().get(shared.headers["location"]).text
    assert client().get("/diagnose?id=none").status_code == 404


def test_without_a_database_a_log_is_diagnosed(home):
    with database.write() as session:
        session.execute(text("DROP TABLE run"))
    assert "Logs can be diagnosed meanwhile." in client().get("/diagnose").text
    assert "cuda_out_of_memory" in posted({"log": ERROR}).text


def test_a_batch_size_is_proposed_only_if_it_is_known(home):
    assert "New run with" not in posted({"log": ERROR}).text
    assert "New run with Micro batch size: 4<" in posted({"log": ERROR, "micro_batch": "8"}).text


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
    page.locator("textarea[name=log]").fill(f"hf_{'a' * 20}\n{HARM}\n{ERROR}")
    page.get_by_role("button", name="Diagnose").click()
    says(page, ".diagnosis", "cuda_out_of_memory")
    assert list((site[1] / "diagnoses").glob("*.json")) == []  # nothing is stored before Share is pressed
    page.get_by_role("button", name="Share").click()
    says(page, ".shared", "Shared by local")
    page.wait_for_function("location.search.includes('id=')")
    link = page.url
    assert page.locator(".shared [data-copy]").get_attribute("data-copy") == link
    says(page, ".recent", "Log of local", "Out of GPU memory")

    page.goto("/diagnose")
    page.locator(".recent a", has_text="Log of local").first.click()
    says(page, ".shared", "Shared by local")
    assert page.url == link
    page.locator(".shared-log summary").click()
    says(page, ".shared-log", "hf_[redacted]", "window.harmed")
    assert page.evaluate("window.harmed") is None

    page.get_by_role("button", name="Delete").click()
    page.locator("#ask [data-confirm]").click()
    says(page, ".banner", "Its link no longer works.")
    page.goto(link)
    says(page, "main", "Shared diagnosis not found", "was deleted")


def test_failed_runs_are_listed_with_their_causes(page):
    diagnosis = diagnose(ERROR).document()
    run = (
        PlayedRun("<b>sums</b>").claim("host/cuda:0").end(Status.FAILED, error={"message": "x", "diagnosis": diagnosis})
    )
    page.goto("/diagnose")
    says(page, ".recent", "<b>sums</b>")
    says(page, ".recent", "Out of GPU memory")
    page.locator(".recent a").click()
    says(page, ".failure", "Out of GPU memory")
    assert page.url.endswith(f"/run?id={run.id}")
