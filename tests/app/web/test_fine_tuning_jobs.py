"""OpenAI's fine-tuning API, by OpenAI's own client."""

import json
import re

import openai
import pytest
from played_run import PlayedRun
from run_files import checkpoint, result
from subtest_table import table
from web import account, client

from training.config.run_config import RunConfig
from training.run_folder.events import CheckpointSaved, Metrics
from worker.fine_tuning.job import PARAMETERS
from worker.settings import get_settings
from worker.store import claims, database, runs
from worker.store.tables import Status

TURNS = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Rome"}]
ROWS = [{"messages": TURNS}] * 8
PROMPTS = [{"messages": TURNS[:1], "city": f"Rome {number}"} for number in range(8)]
PAIRS = [
    {"input": {"messages": TURNS[:1]}, "preferred_output": TURNS[1:], "non_preferred_output": [TURNS[1] | {"content": "no"}]}
] * 8  # fmt: skip
GRADER = {
    "type": "string_check",
    "name": "city",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.city}}",
}


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def reached(api, headers=None):
    key = (headers or api.headers)["Authorization"].removeprefix("Bearer ")
    return openai.OpenAI(base_url=f"{api.base_url}/v1", api_key=key, http_client=api, max_retries=0)


@pytest.fixture
def api(home):
    return client()


@pytest.fixture
def sdk(api):
    return reached(api)


@pytest.fixture
def file_id(sdk):
    return sdk.files.create(file=("train.jsonl", lines(ROWS)), purpose="fine-tune").id


@pytest.fixture
def prompts_id(sdk):
    return sdk.files.create(file=("prompts.jsonl", lines(PROMPTS)), purpose="fine-tune").id


def stored_run(job):
    with database.read() as session:
        return runs.get(session=session, run_id=job.id.removeprefix("ftjob-"))


class TestFiles:
    def test_a_file_is_a_data_set(self, sdk, api, file_id):
        found = sdk.files.retrieve(file_id)
        assert (found.filename, found.purpose, found.status, found.bytes) == (
            "train.jsonl",
            "fine-tune",
            "processed",
            len(lines(ROWS)),
        )
        assert sdk.files.content(file_id).read() == lines(ROWS)
        assert [item.id for item in sdk.files.list(purpose="fine-tune")] == [file_id] and not [
            *sdk.files.list(purpose="batch")
        ]
        assert api.get("/api/datasets").json()["datasets"][0]["id"] == file_id.removeprefix("file-")
        assert sdk.files.delete(file_id).deleted
        with pytest.raises(openai.NotFoundError) as gone:
            sdk.files.retrieve(file_id)
        assert gone.value.param == "file_id"

    def test_lists_go_on_after_an_id(self, sdk, file_id, prompts_id):
        assert [item.id for item in sdk.files.list(limit=1)] == [
            prompts_id,
            file_id,
        ]  # the client asks for page after page
        assert [item.id for item in sdk.files.list(limit=1, order="asc")] == [file_id, prompts_id]


@table(
    ("param", "content", "purpose"),
    [
        ("purpose", lines(ROWS), "batch"),
        ("rows.jsonl, row 1", b'{"messages": [', "fine-tune"),
        ("rows.jsonl", b"", "fine-tune"),
    ],
)
def test_a_file_that_cannot_train_is_refused(sdk, param, content, purpose):
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.files.create(file=("rows.jsonl", content), purpose=purpose)
    assert refused.value.param == param and refused.value.body["fix"]


class TestJobs:
    def test_supervised(self, sdk, api, file_id):
        given = {"n_epochs": 2, "batch_size": 6, "learning_rate_multiplier": 5}
        job = sdk.fine_tuning.jobs.create(
            model="starter", training_file=file_id, suffix="orders", seed=3, metadata={"team": "a"},
            method={"type": "supervised", "supervised": {"hyperparameters": given}}, extra_body={"lathe": {"lora_r": 4}},
        )  # fmt: skip
        assert (job.status, job.fine_tuned_model, job.model, job.training_file) == ("queued", None, "starter", file_id)
        assert job.hyperparameters.to_dict() == given == job.method.supervised.hyperparameters.to_dict()
        assert (job.user_provided_suffix, job.seed, job.metadata) == ("orders", 3, {"team": "a"})
        config = stored_run(job).asked
        assert (config.task, config.global_batch_size, config.lora_r, config.eval_split) == ("sft", 6, 4, 0)
        assert config.learning_rate == 5 * 2e-4 and config.data == file_id.removeprefix("file-")
        assert sdk.fine_tuning.jobs.retrieve(job.id) == job and [*sdk.fine_tuning.jobs.list()] == [job]
        assert api.get("/api/runs").json()["runs"][0]["name"] == "orders"
        first = [*sdk.fine_tuning.jobs.list_events(job.id)][-1]
        assert first.message == "Memory forecast: Fits." and first.type == "message"

    def test_what_is_auto_is_said(self, sdk, file_id):
        job = sdk.fine_tuning.jobs.create(model="starter", training_file=file_id)
        assert job.hyperparameters.to_dict() == {"n_epochs": 3, "batch_size": 4, "learning_rate_multiplier": 1}

    def test_preferences(self, sdk):
        pairs = sdk.files.create(file=("pairs.jsonl", lines(PAIRS)), purpose="fine-tune")
        method = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.3}}}
        job = sdk.fine_tuning.jobs.create(model="starter", training_file=pairs.id, method=method)
        assert job.method.dpo.hyperparameters.beta == 0.3 and stored_run(job).asked.task == "dpo"

    def test_reinforcement(self, sdk, prompts_id):
        method = {"type": "reinforcement", "reinforcement": {"grader": GRADER, "hyperparameters": {"batch_size": 2}}}
        job = sdk.fine_tuning.jobs.create(model="starter", training_file=prompts_id, method=method)
        config = stored_run(job).asked
        assert (config.task, config.global_batch_size, config.num_generations) == ("grpo", 16, 8)
        assert job.hyperparameters.batch_size == 2 and config.learning_rate == 1e-5
        assert json.loads(config.rewards)[0]["reference"] == "{{item.city}}"
        assert job.method.reinforcement.grader.to_dict() == GRADER

    def test_a_model_by_the_operators_name(self, sdk, file_id, monkeypatch):
        monkeypatch.setenv("LATHE_OPENAI_MODELS", "gpt-4.1-mini = static/starter")
        get_settings.cache_clear()
        job = sdk.fine_tuning.jobs.create(model="gpt-4.1-mini", training_file=file_id)
        assert job.model == "gpt-4.1-mini" and stored_run(job).asked.model.endswith("static/starter")
        with pytest.raises(openai.NotFoundError, match=r"gpt-4\.1-mini, starter") as refused:
            sdk.fine_tuning.jobs.create(model="gpt-4o", training_file=file_id)
        assert (refused.value.param, refused.value.code) == ("model", "model_not_found")

    def test_lists_go_on_after_a_job(self, sdk, file_id):
        made = [
            sdk.fine_tuning.jobs.create(model="starter", training_file=file_id, suffix=f"{number}")
            for number in range(3)
        ]
        assert [job.id for job in sdk.fine_tuning.jobs.list(limit=1)] == [job.id for job in reversed(made)]
        with pytest.raises(openai.NotFoundError):
            sdk.fine_tuning.jobs.list(after="ftjob-none")

    def test_a_repeated_request_with_its_key_makes_one_job(self, sdk, file_id):
        jobs = [
            sdk.fine_tuning.jobs.create(
                model="starter", training_file=file_id, extra_headers={"Idempotency-Key": "one"}
            )
            for _ in range(2)
        ]
        assert jobs[0] == jobs[1]

    def test_cancel_pause_and_resume(self, sdk, file_id):
        made = sdk.fine_tuning.jobs
        job = made.create(model="starter", training_file=file_id)
        assert made.pause(job.id).status == "paused" and made.retrieve(job.id).status == "paused"
        assert made.resume(job.id).status == "queued"
        with pytest.raises(openai.ConflictError, match="not paused"):
            made.resume(job.id)
        run = PlayedRun.of(stored_run(job).id).claim()
        assert made.pause(job.id).status == "running" and stored_run(job).request == "requeue"
        with database.write() as session:
            claims.requeue(session=session, run_id=run.id, attempt=run.attempt, reason="asked", outcome="requeued")
        assert made.retrieve(job.id).status == "paused"
        assert made.resume(job.id).status == "queued"
        assert made.cancel(job.id).status == "cancelled"
        with pytest.raises(openai.ConflictError):
            made.cancel(job.id)

    def test_a_job_that_was_stopped_while_it_was_to_pause_can_go_on(self, sdk, api, file_id):
        made = sdk.fine_tuning.jobs
        job = made.create(model="starter", training_file=file_id)
        run = PlayedRun.of(stored_run(job).id).claim()
        made.pause(job.id)
        made.cancel(job.id)
        run.end(Status.STOPPED)
        api.post(f"/api/runs/{run.id}/resume")
        assert made.retrieve(job.id).status == "queued"

    def test_events_and_checkpoints_are_the_newest_first(self, sdk, file_id):
        job = sdk.fine_tuning.jobs.create(model="starter", training_file=file_id)
        run = PlayedRun.of(stored_run(job).id).claim()
        run.report(*(Metrics(step=step, values={"loss": 3.0 - step}) for step in (1, 2)))
        run.report(CheckpointSaved(step=2, path="checkpoint-2", bytes=1))
        (checkpoint(run.id, 2) / "adapter_config.json").write_text("{}")
        run.end()
        result(run.id)
        events = [*sdk.fine_tuning.jobs.list_events(job.id, limit=3)]  # page after page
        assert len({event.id for event in events}) == len(events) > 3
        assert [event.created_at for event in events] == sorted((event.created_at for event in events), reverse=True)
        measured = [event.data for event in events if event.type == "metrics"]
        assert measured == [{"step": 2, "train_loss": 1.0}, {"step": 1, "train_loss": 2.0}]
        [kept] = sdk.fine_tuning.jobs.checkpoints.list(job.id)
        assert kept.step_number == 2 and kept.metrics.train_loss == 1.0
        done = sdk.fine_tuning.jobs.retrieve(job.id)
        served = {model.id for model in sdk.models.list()}
        assert done.status == "succeeded" and {done.fine_tuned_model, kept.fine_tuned_model_checkpoint} <= served
        with pytest.raises(openai.BadRequestError) as refused:  # it has no weights
            sdk.fine_tuning.jobs.create(model=done.fine_tuned_model, training_file=file_id)
        assert refused.value.param == "model"

    def test_a_failure_says_why(self, sdk, file_id):
        job = sdk.fine_tuning.jobs.create(model="starter", training_file=file_id)
        run = PlayedRun.of(stored_run(job).id).claim()
        run.end(Status.FAILED, error={"message": "It broke.", "fix": "Mend it."})
        failed = sdk.fine_tuning.jobs.retrieve(job.id)
        assert (failed.status, failed.error.message) == ("failed", "It broke. Mend it.")


SUPERVISED = {"type": "supervised", "supervised": {"hyperparameters": {}}}


def hyperparameters(**given):
    return {"method": {"type": "supervised", "supervised": {"hyperparameters": given}}}


def reinforced(**given):
    return {"method": {"type": "reinforcement", "reinforcement": {"grader": GRADER} | given}}


@table(
    ("param", "change"),
    [
        ("model", {"model": None}),
        ("model", {"model": ""}),
        ("model", {"model": 3}),
        ("model", {"model": "gpt-4.1-mini"}),
        ("model", {"model": "x" * 5000}),
        ("training_file", {"training_file": None}),
        ("training_file", {"training_file": "file-nothere"}),
        ("training_file", {"training_file": "nothere"}),
        ("training_file", {"training_file": ["file-a"]}),
        ("validation_file", {"validation_file": "file-nothere"}),
        ("suffix", {"suffix": "x" * 65}),
        ("suffix", {"suffix": 7}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": "one"}),
        ("seed", {"seed": 2**31}),
        ("integrations", {"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]}),
        ("metadata.a", {"metadata": {"a": 1}}),
        ("metadata.a", {"metadata": {"a": "x" * 600}}),
        ("metadata", {"metadata": {f"{number}": "x" for number in range(20)}}),
        ("learning_rate", {"learning_rate": 0.1}),
        ("method.type", {"method": {"type": "rlhf"}}),
        ("method.type", {"method": {}}),
        ("method", {"method": "supervised"}),
        ("method.supervised.epochs", {"method": {"type": "supervised", "supervised": {"epochs": 3}}}),
        ("method.dpo", {"method": SUPERVISED | {"dpo": {}}}),
        ("method.reinforcement", {"method": {"type": "reinforcement"}}),
        ("hyperparameters", {"method": SUPERVISED, "hyperparameters": {"n_epochs": 2}}),
        ("hyperparameters.n_epochs", {"hyperparameters": {"n_epochs": 0}}),
        ("hyperparameters.beta", {"hyperparameters": {"beta": 0.1}}),
        ("method.supervised.hyperparameters.n_epochs", hyperparameters(n_epochs="many")),
        ("method.supervised.hyperparameters.n_epochs", hyperparameters(n_epochs=-1)),
        ("method.supervised.hyperparameters.batch_size", hyperparameters(batch_size=0)),
        ("method.supervised.hyperparameters.batch_size", hyperparameters(batch_size=1.5)),
        ("method.supervised.hyperparameters.learning_rate_multiplier", hyperparameters(learning_rate_multiplier=0)),
        ("method.supervised.hyperparameters.learning_rate_multiplier", hyperparameters(learning_rate_multiplier=9999)),
        ("method.supervised.hyperparameters.warmup", hyperparameters(warmup=3)),
        ("method.reinforcement.grader", {"method": {"type": "reinforcement", "reinforcement": {}}}),
        ("method.reinforcement.grader", reinforced(grader=3)),
        ("method.reinforcement.grader.type", reinforced(grader={"type": "label_model"})),
        ("method.reinforcement.grader.operation", reinforced(grader=GRADER | {"operation": "is"})),
        ("method.reinforcement.grader", reinforced(grader=GRADER | {"reference": "{{row.city}}"})),
        ("method.reinforcement.response_format", reinforced(response_format={"type": "json_schema"})),
        ("method.reinforcement.hyperparameters.compute_multiplier", reinforced(hyperparameters={"compute_multiplier": 2})),
        ("method.reinforcement.hyperparameters.eval_samples", reinforced(hyperparameters={"eval_samples": 2})),
        ("method.reinforcement.hyperparameters.reasoning_effort", reinforced(hyperparameters={"reasoning_effort": "high"})),
        ("lathe.lora_r", {"lathe": {"lora_r": "abc"}}),
        ("lathe.lora_rank", {"lathe": {"lora_rank": 3}}),
        ("lathe.data", {"lathe": {"data": "x"}}),
        ("lathe.task", {"lathe": {"task": "classification"}}),
        ("lathe", {"lathe": [1]}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_in_openais_form_and_nothing_is_queued(api, file_id, prompts_id, param, change):
    graded = (change.get("method") or {}) if isinstance(change.get("method"), dict) else {}
    data = prompts_id if graded.get("type") == "reinforcement" else file_id
    body = {"model": "starter", "training_file": data} | change
    answer = api.post("/v1/fine_tuning/jobs", json={name: value for name, value in body.items() if value is not None})
    error = answer.json()["error"]
    assert answer.status_code in (400, 404) and error["type"] == "invalid_request_error"
    assert error["param"] == param and error["message"] and error["fix"], error
    assert api.get("/v1/fine_tuning/jobs").json()["data"] == []


class TestGraders:
    def test_a_grader_is_tried(self, api):
        trial = {"grader": GRADER, "model_sample": "Rome", "item": {"city": "Rome"}}
        answer = api.post("/v1/fine_tuning/alpha/graders/run", json=trial).json()
        assert answer["reward"] == 1 and not answer["metadata"]["errors"]["other_error"]
        two = {
            "type": "multi",
            "name": "both",
            "graders": {"a": GRADER, "b": GRADER | {"operation": "like"}},
            "calculate_output": "a + 2*b",
        }
        answer = api.post(
            "/v1/fine_tuning/alpha/graders/run", json=trial | {"grader": two, "model_sample": "In Rome"}
        ).json()
        assert (answer["reward"], answer["sub_rewards"]) == (2, {"a": 0, "b": 1})
        assert api.post("/v1/fine_tuning/alpha/graders/validate", json={"grader": two}).json() == {"grader": two}
        wrong = api.post("/v1/fine_tuning/alpha/graders/validate", json={"grader": two | {"calculate_output": "c"}})
        assert wrong.json()["error"]["param"] == "grader.calculate_output"

    def test_the_owners_code_runs_and_that_of_accounts_does_not(self, api, home):
        code = {"type": "python", "source": "def grade(sample, item):\n    return item['x'] / 4"}
        trial = {"grader": code, "model_sample": "", "item": {"x": 1}}
        assert api.post("/v1/fine_tuning/alpha/graders/run", json=trial).json()["reward"] == 0.25
        own = account("bob")
        for grader in (code, {"type": "multi", "graders": {"a": code}, "calculate_output": "a"}):
            for path in ("run", "validate"):
                body = trial | {"grader": grader} if path == "run" else {"grader": grader}
                refused = api.post(f"/v1/fine_tuning/alpha/graders/{path}", json=body, headers=own)
                assert refused.status_code in (400, 403) and "code" in refused.json()["error"]["message"]
        body = {
            "model": "starter",
            "training_file": "file-x",
            "method": {"type": "reinforcement", "reinforcement": {"grader": code}},
        }
        refused = api.post("/v1/fine_tuning/jobs", json=body, headers=own)
        assert refused.status_code in (400, 403) and "code" in refused.json()["error"]["message"]


def test_nobody_sees_or_changes_the_jobs_and_files_of_others(api, sdk, file_id, monkeypatch):
    monkeypatch.setenv("LATHE_VISIBILITY", "own")
    get_settings.cache_clear()
    job = sdk.fine_tuning.jobs.create(model="starter", training_file=file_id)
    bob = account("bob")
    for method, path in (
        ("get", f"files/{file_id}"), ("get", f"files/{file_id}/content"), ("delete", f"files/{file_id}"),
        *(("get", f"fine_tuning/jobs/{job.id}{part}") for part in ("", "/events", "/checkpoints")),
        *(("post", f"fine_tuning/jobs/{job.id}/{verb}") for verb in ("cancel", "pause", "resume")),
    ):  # fmt: skip
        answer = api.request(method, f"/v1/{path}", headers=bob)
        assert answer.status_code == 404 and answer.json()["error"]["fix"], path
    assert (
        api.get("/v1/files", headers=bob).json()["data"]
        == api.get("/v1/fine_tuning/jobs", headers=bob).json()["data"]
        == []
    )
    body = {"model": "starter", "training_file": file_id}
    assert api.post("/v1/fine_tuning/jobs", json=body, headers=bob).json()["error"]["param"] == "training_file"
    assert sdk.fine_tuning.jobs.retrieve(job.id).status == "queued" and sdk.files.retrieve(file_id)
    monkeypatch.setenv("LATHE_VISIBILITY", "all")
    get_settings.cache_clear()
    assert re.search("40[13]", str(api.post(f"/v1/fine_tuning/jobs/{job.id}/cancel", headers=bob).status_code))


def test_another_method_or_path_is_named_with_those_that_there_are(api, file_id):
    wrong = api.patch(f"/v1/files/{file_id}")
    assert wrong.status_code == 405 and "Use DELETE or GET." in wrong.json()["error"]["message"]
    missing = api.get("/v1/fine_tuning/nothing")
    assert missing.status_code == 404 and missing.json()["error"]["fix"]


def test_each_parameter_of_a_job_is_that_of_a_setting():
    assert PARAMETERS.keys() <= RunConfig.model_fields.keys()
