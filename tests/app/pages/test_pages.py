"""The pages in a real browser, on a server of their own whose database the tests fill."""

import json

import pytest
from browser import IN_BROWSER, choose, field, pick, reveal, says
from played_run import GIB, PlayedRun, model_folder
from run_files import checkpoint

from training.run_folder.events import CheckpointSaved, Metrics, Note, PhaseStarted, Planned
from worker.settings import get_settings
from worker.store import database
from worker.store.tables import Run, Status

pytestmark = IN_BROWSER

SCRIPT = "<script>window.harmed = true</script><img src=x onerror='window.harmed = true'>"


@pytest.fixture
def rows(tmp_path):
    """A data set file of 20 rows."""
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n} + 1 =", "completion": f" {n + 1}"}) + "\n" for n in range(20)))
    return path


def open_new_run(page, query=""):
    page.goto(f"/new{query}")
    says(page, ".start-card .lead, .start-card .ready", "")
    page.locator("#command .cm-line", has_text="accelerate launch").wait_for()


def trained(name="sums", steps=40, **settings):
    """A run that is training: with measurements, memory of one rank, a checkpoint and a warning."""
    plan = Planned(
        total_steps=2 * steps, start_step=0, train_rows=19, eval_rows=1, skipped_rows=0, truncated_rows=0, world_size=1,
        engine="LlamaForCausalLM", zero_stage=None, precision="fp32", trainable_parameters=10, total_parameters=1000,
        target_modules=["q_proj"],
    )  # fmt: skip
    points = [
        Metrics(step=n, values={"loss": 3 - n / steps, "learning_rate": 1e-4, "grad_norm": 1.0})
        for n in range(1, steps + 1)
    ]
    memory = [Metrics(step=n, rank=0, values={"host_rss": GIB + n}) for n in range(1, steps + 1)]
    saved, note = (
        CheckpointSaved(step=20, path="checkpoint-20", bytes=2**20),
        Note(message="2 rows cut off", level="warning"),
    )
    return (
        PlayedRun(name, **settings).claim().report(PhaseStarted(phase="training"), plan, *points, *memory, saved, note)
    )


def plotted(page):
    """How many points the first line of the plot of the loss has."""
    return page.evaluate("lathe.plotsOfRun()?.panels[0]?.lines[0]?.x.length")


def wait_for_points(page, count):
    page.wait_for_function(f"() => lathe.plotsOfRun()?.panels[0]?.lines[0]?.x.length === {count}")


def test_nothing_in_the_header_moves_between_pages(page):
    measured = """() => [document.querySelector('.top').offsetHeight,
      ...[...document.querySelectorAll('.top .brand, .top nav a')].map((one) => one.getBoundingClientRect().toJSON())]"""

    def places(path):
        page.goto(path)
        page.locator(".top nav a").first.wait_for()
        return page.evaluate(measured)

    runs = places("/")
    assert [path for path in ("/datasets", "/new", "/system", "/start") if places(path) != runs] == []


def test_an_empty_history_leads_to_a_new_run(page):
    page.goto("/")
    says(page, ".empty", "No runs yet")
    page.get_by_role("link", name="Start a run").click()
    says(page, ".start-card", "To start, choose: model, data")
    assert page.locator("#start").is_disabled()


@pytest.mark.nightly
def test_another_method_shows_its_options_and_its_trainable_parameters(page, tmp_path):
    from tiny import make_model

    open_new_run(page)
    reveal(page, "method_options")
    says(page, ".method-options summary", "LoRA options")
    pick(page, "method", "VeRA")
    says(page, ".method-options summary", "VeRA options")
    field(page, "model").fill(str(make_model(tmp_path / "model")))
    field(page, "model").press("Enter")
    field(page, "method_options").fill("d_initail=0.2")
    says(page, ".problems", "Did you mean d_initial?")
    page.locator(".problems button.fix", has_text="d_initial").click()
    page.wait_for_function("document.querySelector('#setting-method_options textarea')?.value === 'd_initial=0.2'")
    page.locator("#look-targets").click()
    page.locator(".targets table", has_text="model.layers.*.self_attn.q_proj").wait_for()
    says(page, ".targets", "1,280 of 116,928 parameters are trainable", "64 -> 64")


@pytest.mark.nightly
def test_a_draft_survives_a_refresh(page):
    open_new_run(page)
    field(page, "name").fill("kept")
    choose(page, "strategy", "ZeRO stage 3")
    choose(page, "offload_param", "CPU")
    field(page, "learning_rate").fill("abc")
    says(page, ".problems li", "Learning rate")  # arrives with the draft of all four settings
    page.reload()
    page.wait_for_function("document.querySelector('#setting-name textarea')?.value === 'kept'")
    assert field(page, "learning_rate").input_value() == "abc"
    assert page.locator("#setting-offload_param label.selected").inner_text().strip() == "CPU"


@pytest.mark.nightly
def test_an_upload_is_described_picked_and_started_and_opens_the_run_page(page, rows, tmp_path):
    open_new_run(page)
    page.set_input_files("#upload input[type=file]", rows)
    says(page, ".found", "prompt/completion", "0 + 1 =")
    page.wait_for_function("document.querySelector('#setting-data input').value.startsWith('sums.jsonl')")
    field(page, "model").fill(str(model_folder(tmp_path / "model")))
    field(page, "model").press("Enter")
    field(page, "name").fill(SCRIPT)
    says(page, ".ready", "Ready to start")
    page.locator("#start").click()
    page.wait_for_url("**/run?id=*")
    says(page, ".standing", "position 1 of 1 in the queue")
    assert page.locator("h1").inner_text() == SCRIPT
    uploads = [path for path in get_settings().uploads_dir.rglob("*") if path.is_file()]
    assert uploads == []


@pytest.mark.nightly
def test_an_unusable_file_is_explained_at_the_upload_box(page, tmp_path):
    open_new_run(page)
    bad = tmp_path / "<b>bad.jsonl"
    bad.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": \n')
    page.set_input_files("#upload input[type=file]", bad)
    says(page, ".alert", "bad.jsonl", "row 2", "not valid JSON")
    assert list(get_settings().data_dir.rglob("*bad*")) == []


def test_a_finished_run_shows_its_charts_results_and_download(page):
    run = trained("sums")
    folder = get_settings().runs_dir / run.id
    folder.mkdir(parents=True)
    (folder / "adapter.zip").write_bytes(b"PK\x05\x06" + b"\0" * 18)
    run.end()
    page.goto(f"/run?id={run.id}")
    says(page, ".run-title", "finished", run.id)
    says(page, ".panel", "4.0% before, 96.0% after", "294,912 of 124,737,792", "ZeRO-2 (DeepSpeedEngine)")
    says(page, ".events", "Checkpoint at step 20", "2 rows cut off")
    wait_for_points(page, 40)
    with page.expect_download() as download:
        page.locator("a", has_text="Download adapter").click()
    assert download.value.suggested_filename == f"sums-{run.id}.zip"


def test_new_points_arrive_during_training_and_the_zoom_is_kept(page):
    run = trained("sums")
    page.goto(f"/run?id={run.id}")
    wait_for_points(page, 40)
    page.evaluate("lathe.plotsOfRun().zoom(5, 60)")
    page.wait_for_function("() => lathe.plotsOfRun().range")
    run.report(Metrics(step=41, values={"loss": 1.9})).prints("step 41 of 80")
    says(page, ".log", "step 41 of 80")
    says(page, ".standing", "41 of 80", "1.9000")
    assert page.evaluate("lathe.plotsOfRun().range[0]") == 5


def test_a_line_that_arrives_while_the_log_is_loaded_is_kept(page):
    run = trained("sums").prints("an early line")
    held = []
    page.route("**/log-window*", lambda route: held.append((route, route.fetch())), times=1)
    page.goto(f"/run?id={run.id}")
    wait_for_points(page, 40)
    run.prints("a late line")
    says(page, ".log", "a late line")
    ((route, response),) = held
    route.fulfill(response=response)
    says(page, ".log", "an early line", "a late line")


def test_stop_asks_for_confirmation_and_reaches_the_run(page):
    run = trained("sums")
    page.goto(f"/run?id={run.id}")
    page.get_by_role("button", name="Stop").click()
    says(page, "#ask", "saves a checkpoint", "Resume continues")
    page.keyboard.press("Escape")
    page.locator("#ask").wait_for(state="hidden")
    assert run.row.request is None
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Stop and save").click()
    says(page, ".run-title", "stopping")
    assert run.row.request == "stop"


def test_a_failed_run_shows_its_error_and_fix_and_can_be_resumed(page):
    run = trained("sums").prints("last words")
    error = {"message": "Out of memory.", "fix": "Halve micro_batch_size.", "phase": "training", "rank": 0}
    run.end(Status.FAILED, reason="no memory", error=error)
    page.goto(f"/run?id={run.id}")
    says(page, ".failure", "Out of memory.", "Halve micro_batch_size.", "Failed while training on rank 0")
    page.locator(".failure a", has_text="Log of the run").click()
    says(page, "#log .log-line", "last words")
    page.get_by_role("button", name="Train from the start", exact=True).click()
    says(page, ".run-title", "queued")


@pytest.mark.nightly
def test_a_refused_resume_shows_why(page):
    run = trained("sums").end(Status.FAILED, reason="no memory", error={"message": "Out of memory."})
    with database.write() as session:
        row = session.get(Run, run.id)
        row.config = row.config | {"model": "/nowhere/model"}
        session.add(row)
    page.goto(f"/run?id={run.id}")
    page.get_by_role("button", name="Train from the start", exact=True).click()
    says(page, "#said", "/nowhere/model")
    says(page, ".run-title", "failed")


def test_a_stopped_run_is_resumed_on_other_processes_and_a_refusal_stays_in_the_dialog(page):
    run = trained("sums", gradient_accumulation_steps=4).end(Status.STOPPED)
    checkpoint(run.id, 1)
    page.goto(f"/run?id={run.id}")
    page.get_by_role("button", name="Resume on ...").click()
    dialog = page.get_by_role("dialog", name="Resume on other processes")
    says(page, "#resume-on", "The global batch size stays the same")
    assert dialog.get_by_label("Processes").input_value() == "1"
    dialog.get_by_label("Processes").fill("2")
    dialog.get_by_role("button", name="Resume").click()
    says(page, "#resume-on .alert", "strategy")  # "single" has one process
    dialog.get_by_label("Strategy").select_option("ZeRO stage 2")
    dialog.get_by_role("button", name="Resume").click()
    dialog.wait_for(state="hidden")
    assert run.row.status is Status.QUEUED
    config = run.row.config | run.row.stepped_down
    assert (config["strategy"], config["num_processes"], config["gradient_accumulation_steps"]) == ("zero2", 2, 2)


@pytest.mark.nightly
def test_a_clone_starts_with_the_runs_settings_and_keeps_edits_on_a_refresh(page):
    run = trained("sums", lora_r=64, learning_rate=5e-4)
    page.goto(f"/run?id={run.id}")
    page.locator(".links a", has_text="Clone").click()
    page.wait_for_function("document.querySelector('#setting-lora_r textarea')?.value === '64'")
    says(page, ".banner", "sums")
    says(page, "#command", "accelerate")
    field(page, "lora_r").fill("32")
    field(page, "lora_alpha").fill("abc")
    says(page, ".problems li", "abc")  # arrives with the draft of both settings
    page.reload()
    page.wait_for_function("document.querySelector('#setting-learning_rate textarea')?.value === '0.0005'")
    assert field(page, "lora_r").input_value() == "32"


def test_name_tags_and_note_of_a_run_are_edited(page):
    run = trained("sums")
    page.goto(f"/run?id={run.id}")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Name").fill(SCRIPT)
    page.get_by_label("Tags").fill("Paper, second try")
    page.get_by_label("Note").fill("With a longer warmup.")
    page.get_by_role("button", name="Save").click()
    says(page, "h1", SCRIPT)
    says(page, ".run-title", "paper", "second try", "With a longer warmup.")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Note").fill("")
    page.get_by_role("button", name="Save").click()
    page.locator(".run-note").wait_for(state="detached")
    assert (run.row.tags, run.row.notes) == (["paper", "second try"], "")
    assert page.evaluate("window.harmed") is None


def test_an_ended_run_is_deleted_after_a_question(page):
    run = trained("sums").end()
    page.goto(f"/run?id={run.id}")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    says(page, ".empty", "No runs yet")
    page.goto(f"/run?id={run.id}")
    says(page, "main", "Run not found")


@pytest.mark.nightly
def test_an_unknown_run_is_named_with_a_link_to_all_runs(page):
    page.goto("/run?id=<b>nosuchrun")
    says(page, "main", "Run not found", "<b>nosuchrun")
    page.locator(".empty a", has_text="Show all runs").click()
    says(page, ".empty", "No runs yet")


def test_markup_in_names_log_lines_and_notes_is_escaped(page):
    run = trained(SCRIPT).prints(SCRIPT).report(Note(message=SCRIPT, level="warning"))
    page.goto("/")
    says(page, "td.name", SCRIPT)
    page.goto(f"/run?id={run.id}")
    says(page, "h1", SCRIPT)
    says(page, ".log", SCRIPT)
    says(page, ".events", SCRIPT)
    run.end(
        Status.FAILED, reason=SCRIPT, error={"message": SCRIPT, "fix": SCRIPT, "traceback": SCRIPT, "log_tail": SCRIPT}
    )
    says(page, ".failure", SCRIPT)
    page.goto(f"/new?clone={run.id}")
    says(page, ".banner", SCRIPT)
    assert page.evaluate("window.harmed") is None
