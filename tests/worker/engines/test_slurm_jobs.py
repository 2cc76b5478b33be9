"""Jobs of Slurm: their options, names and states, without a cluster."""

from pathlib import Path
from typing import Any

import pytest
from played_run import PlayedRun
from subtest_table import table

from app.documents.run import place
from training.config import slurm_options
from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from worker.engines.job_side.supervisor import JobSupervisor, launch_step
from worker.engines.slurm import jobs
from worker.engines.slurm.cluster import SlurmError, call
from worker.runs import checks
from worker.runs.settle import settle
from worker.settings import Settings, SettingsError, get_settings
from worker.store import database as db
from worker.store import machines, runs
from worker.store.tables import Request, Status
from worker.supervision import closing, outcome
from worker.supervision.report_reader import AttemptProgress

RUN = "abc123def456"


def config(**values: Any) -> RunConfig:
    return parse({"model": "m", "data": "d"} | values)


def settings(**values: Any) -> Settings:
    return Settings(data_dir=Path("/shared"), **values)


def test_a_run_overrides_the_options_of_the_installation() -> None:
    installation = settings(slurm_options="partition=batch, account=lab, nodelist=n[1-2],n7")
    run = config(slurm_options={"partition": "gpu", "time": "1-12:00:00"})
    assert jobs.options(run, installation) == {
        "partition": "gpu", "account": "lab", "nodelist": "n[1-2],n7", "time": "1-12:00:00",
    }  # fmt: skip


@pytest.mark.parametrize(
    "given", ["partition", "output=/etc/passwd", "partition=a b", "partition=a\nb", "uid=0", "wrap=x"]
)
def test_options_that_do_not_choose_resources_are_refused(given: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(slurm_options=given)
    assert error.value.problem.field == "slurm_options"


def test_a_job_has_the_nodes_and_gpus_of_its_run() -> None:
    run = config(strategy="zero3", num_processes=16, num_machines=2, slurm_options="gres=gpu:h100, cpus_per_task=8")
    argv, script = jobs.submission(run, RUN, 3, settings(slurm_lines="module load cuda"), "boot")
    assert {"--nodes=2", "--ntasks-per-node=8", "--gres=gpu:h100:8", "--cpus-per-task=8", "--requeue"} <= set(argv)
    assert "--output=/shared/runs/abc123def456/supervisor.log" in argv
    lines = script.splitlines()
    assert lines[:2] == ["#!/bin/sh", "module load cuda"] and lines[2].endswith(f"{RUN} boot")


def test_nodes_without_gpus_are_asked_for_none() -> None:
    argv, _ = jobs.submission(config(), RUN, 1, settings(slurm_gres="cpu"), "boot")
    assert not [word for word in argv if "gres" in word]


def test_only_jobs_of_this_installation_are_read() -> None:
    mine = settings()
    name = jobs.name(mine, RUN, 2)
    other = jobs.name(settings(database_url="postgresql://other/db"), RUN, 2)
    text = "\n".join(
        [
            f"12|PENDING|{name}|gpu|2||1795413600|Priority",
            f"13|RUNNING|{other}|gpu|2|n[1-2]|1795413600|None",
            "14|RUNNING|bash|gpu|1|n1|N/A|None",
            f"15|TIMEOUT|{name}|gpu|2|n[1-2]|N/A|TimeLimit",
        ]
    )
    waiting, ended = jobs.parse(text, mine)
    assert (waiting.id, waiting.run_id, waiting.attempt, waiting.num_nodes, waiting.ended) == ("12", RUN, 2, 2, False)
    assert (waiting.starts_at, waiting.reason) == (1795413600.0, "Priority")
    assert (ended.state, ended.ended, ended.starts_at) == ("TIMEOUT", True, None)


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (
            {"state": "PENDING", "num_nodes": 2, "partition": "gpu", "reason": "Priority", "starts_at": 10_900.0},
            "Waits for 2 nodes of partition gpu: other jobs have a higher priority. Slurm expects it to start in about 3 h.",
        ),
        ({"state": "PENDING", "num_nodes": 1, "reason": "None"}, "Waits for a node."),
        (
            {"state": "PENDING", "num_nodes": 1, "partition": "a", "reason": "QOSMaxCpuPerUserLimit"},
            "Waits for a node of partition a: a limit of the QoS is reached.",
        ),
        (
            {"state": "PENDING", "num_nodes": 1, "reason": "ReqNodeNotAvail, UnavailableNodes:n1"},
            "Waits for a node: nodes that it needs are down, drained or reserved.",
        ),
        ({"state": "PENDING", "num_nodes": 1, "reason": "NewOne"}, "Waits for a node: Slurm says NewOne."),
        ({"state": "RUNNING", "nodes": "n[1-2]"}, "Slurm job 7 starts on n[1-2]."),
    ],
)
def test_why_a_job_waits_is_said_in_words(job: dict[str, Any], sentence: str) -> None:
    assert jobs.waiting_sentence("7", job, now=100.0) == sentence


def test_a_command_that_is_missing_names_its_package() -> None:
    with pytest.raises(SlurmError, match="slurm-client"):
        call(["no-such-command-of-slurm"])


def test_an_unknown_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATHE_ENGINES", "slurm, kubernetes")
    get_settings.cache_clear()
    with pytest.raises(SettingsError, match="LATHE_ENGINES"):
        get_settings()
    get_settings.cache_clear()


def test_a_run_on_several_nodes_avoids_those_that_are_put_aside() -> None:
    run = config(strategy="ddp", num_processes=2, num_machines=2, slurm_options="exclude=n1")
    argv, _ = jobs.submission(run, RUN, 1, settings(), "boot", {"n3", "n2"})
    assert "--exclude=n1,n2,n3" in argv
    argv, _ = jobs.submission(config(), RUN, 1, settings(), "boot", {"n3"})
    assert not any("exclude" in word for word in argv)


@table(
    ("time", "seconds"),
    [
        ("3", 180), ("2:30", 150), ("1:00:00", 3600), ("1-12", 129_600), ("1-0:30", 88_200), ("1-00:00:01", 86_401),
        ("UNLIMITED", None), ("", None),
    ],
)  # fmt: skip
def test_a_time_limit_is_read_as_sbatch_reads_it(time: str, seconds: int | None) -> None:
    assert slurm_options.seconds(time) == seconds


def test_a_time_limit_within_the_grace_is_refused_for_a_run_and_for_the_installation(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(slurm_options="time=1:00:00")
    assert given.time_problem("partition=gpu") is None
    problem = given.time_problem("time=2")
    assert problem and (problem.field, problem.value) == ("slurm_options", "time=2")
    assert "LATHE_SLURM_GRACE_SECONDS (120)" in problem.message
    monkeypatch.setenv("LATHE_ENGINES", "slurm")
    get_settings.cache_clear()
    (refused,) = [
        one for one in checks.problems(settle(config(slurm_options="time=1:30"))) if one.field == "slurm_options"
    ]
    assert refused.value == "time=1:30"
    assert not [
        one
        for one in checks.problems(settle(config(engine="local", slurm_options="time=1")))
        if one.field == "slurm_options"
    ]
    with pytest.raises(SettingsError, match=r"LATHE_SLURM_GRACE_SECONDS.*time=2 is no longer than"):
        monkeypatch.setenv("LATHE_SLURM_OPTIONS", "time=2")
        get_settings.cache_clear()
        get_settings()


def test_a_job_that_nears_its_limit_before_its_first_step_is_a_failed_attempt(home: Path) -> None:
    """Three of them end the run; before, it was requeued for ever."""
    run = PlayedRun("short")
    for attempt in (1, 2, 3):
        run.claim()
        supervisor = JobSupervisor(run.row, launch_step)
        supervisor.near_limit = True
        seen = AttemptProgress()
        verdict = supervisor.without_a_step(outcome.judge(seen, outcome.Ending(0, Request.REQUEUE)), seen)
        with db.write() as session:
            closing.close(
                session=session, run=runs.get(session=session, run_id=run.id), verdict=verdict, max_attempts=3
            )
        assert run.row.status is (Status.FAILED if attempt == 3 else Status.QUEUED)
    assert "came before the first step" in run.row.error["message"]
    assert "slurm_options" in run.row.error["fix"]
    trained = AttemptProgress(step=1)
    asked = outcome.judge(trained, outcome.Ending(0, Request.REQUEUE))
    assert supervisor.without_a_step(asked, trained) == asked


@table(
    ("refusal", "setting"),
    [
        ("sbatch: error: Invalid generic resource (gres) specification", "LATHE_SLURM_GRES"),
        ("sbatch: error: invalid partition specified: gpux", "partition in slurm_options"),
        ("sbatch: error: Invalid account or account/partition combination specified", "slurm_options"),
        ("sbatch: error: Invalid qos specification", "qos in slurm_options"),
        ("sbatch: error: Something new", "Change slurm_options or LATHE_SLURM_OPTIONS"),
    ],
)
def test_a_refusal_names_the_setting_that_it_is_about(refusal: str, setting: str) -> None:
    assert setting in jobs.fix_of(refusal)


def test_a_waiting_run_says_that_slurm_does_not_answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATHE_ENGINES", "slurm")
    get_settings.cache_clear()
    run = PlayedRun("waits")
    with db.write() as session:
        machines.report_engine(
            session=session, name="slurm", capacity={"engine": "slurm", "problem": "Unable to contact slurm controller"}
        )
    with db.read() as session:
        assert (
            place(session, run.row).job == "Waits for Slurm, which does not answer: Unable to contact slurm controller"
        )
    with db.write() as session:
        machines.report_engine(session=session, name="slurm", capacity={"engine": "slurm", "problem": ""})
    with db.read() as session:
        assert place(session, run.row).job == ""
