"""Checks what an evaluation asks for, then stores and queues it."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from training.config import json_text
from training.config.fields import ConfigError
from training.config.task import traits_of
from training.data.row_format import RowFormat
from training.data.row_formats import ANSWERS_FIX, NO_EXPECTED, UNKNOWN, UNKNOWN_FIX
from training.errors import Problem, UserError
from training.rewards.built_in import JUDGE, WITHOUT_EXPECTED
from training.rewards.rewards import functions_in, reward_of
from training.run_folder.paths import saved_result
from training.scoring.request import ACCURACY, BASE, DEFAULT_METRICS, RESULT, EvaluationRequest, evaluation_dir
from worker import allowed_rewards, celery_app, disk_quota
from worker.allowed_paths import EVERYTHING, AllowedPaths
from worker.datasets import datasets, run_data
from worker.results import fetching
from worker.runs import reward_models
from worker.runs.requests import admitted, as_both_see
from worker.runs.settle import find_data, settled_rewards
from worker.sent_code import OWN, refuse_code
from worker.settings import get_settings
from worker.store import database, evaluations, runs
from worker.store.tables import LOCAL, Dataset, Evaluation, Run

TRAINING_NAME = "training rows"
_TASK_NAME = re.compile(r"[\w:-]+")
_INSTALL_FIX = "Install it in the environment of Lathe: pip install lm-eval"


def submit(
    run_id: str, values: dict[str, Any], *, data: str = "", allowed: AllowedPaths = EVERYTHING, owner: str = LOCAL
) -> Evaluation:
    """Queues an evaluation of a run on `data` (a path or data set id); `values` are those of EvaluationRequest.

    A judge, and each function of a file of own code of which `metrics` names none, are metrics too.

    Raises:
        RunNotFound: no run has this id.
        ConfigError: one problem for each wrong value, or for what the run names and its owner may not; nothing is queued.
    """
    refuse_code(values, allowed)
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
    config = admitted(run).typed
    values = _with_defaults(run, values)
    request, problems = _parsed(values)
    rewards = json.loads(settled_rewards(json.dumps(list(request.options.values())), allowed))
    request = request.model_copy(update={"options": dict(zip(request.options, rewards, strict=True))})
    problems += _run_problems(run, request)
    problems += _metric_problems(run, request, allowed)
    if request.lm_eval:
        problems += _lm_eval_problems(request, allowed)
    elif not data and not request.prompts and not request.of_training:
        problems.append(Problem("data", None, "is missing.", "Give a data file or a data set id."))
    if request.exclude_leaked_rows and not data:
        problems.append(Problem("exclude_leaked_rows", True, "needs a data set.", "Give a data file or a data set id."))
    if problems:
        raise ConfigError(problems)
    if data and not request.lm_eval:
        request = _with_data(request, run, data, allowed, owner)
    elif request.of_training:
        request = request.model_copy(update={"name": TRAINING_NAME, "sha256": sha256(run.id.encode()).hexdigest()})
    if request.path or request.of_training:
        # The row may come from an archive and name what neither of them sees: to count its rows would tell what is in it.
        unseen = [problem for _ in as_both_see(run.owner) for problem in run_data.unseen(config)]
        request = request.model_copy(update={"compares": not unseen})
    with database.write() as session:
        document = request.model_dump(mode="json")
        item = evaluations.create(session=session, run_id=run.id, request=document, owner=owner)
    celery_app.notify(run.id)
    return item


def folder_of(item: Evaluation) -> Path:
    """The folder of an evaluation."""
    return evaluation_dir(get_settings().runs_dir / item.run_id, item.id)


def remove(evaluation_id: str) -> None:
    """Deletes an ended evaluation with its answers.

    Raises:
        EvaluationNotFound, EvaluationActive: as worker.store.evaluations.
    """
    with database.write() as session:
        item = evaluations.remove(session=session, evaluation_id=evaluation_id)
    shutil.rmtree(folder_of(item), ignore_errors=True)


def _with_defaults(run: Run, values: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if value is not None}
    usual = [ACCURACY] if traits_of(run.config).has_classes else DEFAULT_METRICS
    metrics = list(given.get("metrics") or usual)
    if given.get("judge") and JUDGE not in metrics:
        metrics.append(JUDGE)
    named = set(_files_of(metrics))
    for file, code in (given.get(OWN) or {}).items():
        if file not in named:
            metrics += [f"{file}:{function}" for function in _functions(file, code)]
    return given | {"metrics": metrics}


def _files_of(metrics: Iterable[str]) -> Iterator[str]:
    """The files of code that metrics name; what is no metric is refused later."""
    for metric in metrics:
        with suppress(UserError, ValueError):
            if own := reward_of(json_text.load(metric) if metric.lstrip().startswith("{") else metric).own:
                yield own[0]


def _functions(file: str, code: str) -> list[str]:
    """The functions in the code of a user."""
    try:
        return functions_in("metrics", file, code)
    except UserError as error:
        raise ConfigError([error.problem]) from None


def _parsed(values: dict[str, Any]) -> tuple[EvaluationRequest, list[Problem]]:
    try:
        return EvaluationRequest.model_validate(values), []
    except ValidationError as error:
        problems = [_problem(values, dict(one)) for one in error.errors()]
        raise ConfigError(problems) from None


def _problem(values: dict[str, Any], error: dict[str, Any]) -> Problem:
    place = ".".join(str(part) for part in error["loc"]) or "metrics"
    given = values.get(place.partition(".")[0])
    message = str(error["msg"]).removeprefix("Value error, ")
    return Problem(place, str(given)[:200], f"{message}.", "Correct it; docs/evaluation.md lists what can be given.")


def _run_problems(run: Run, request: EvaluationRequest) -> list[Problem]:
    if not run.status.ended:
        fix = f"Wait until it has ended: lathe show {run.id}"
        return [Problem("run", run.id, f"is {run.status.value}.", fix)]
    if traits_of(run.config).scores:
        return [Problem("run", run.id, "trained a reward model, which gives no answers.", "Evaluate another run.")]
    if request.has_cases and not traits_of(run.config).generates:
        return [Problem("cases", run.id, "trained a model that generates no text.", "Give data instead of cases.")]
    if traits_of(run.config).has_classes and (request.source == BASE or request.suite):
        return [_without_base(run, request)]
    here = saved_result(get_settings().runs_dir / run.id)
    elsewhere = get_settings().broker_url or fetching.is_elsewhere(run)
    if request.source == RESULT and here is None and not elsewhere:
        fix = "Evaluate one of its checkpoints with --source checkpoint-N, or resume it."
        return [Problem("source", RESULT, f"is missing: the run is {run.status.value} and has no result here.", fix)]
    return []


def _without_base(run: Run, request: EvaluationRequest) -> Problem:
    """Why a classifier is not compared with the model before training."""
    fix = f"Evaluate the result: lathe evaluate {run.id} --data FILE"
    if not request.suite:
        return Problem("source", BASE, "has no trained classes before training.", fix)
    message = "is a classifier: the model before training, with which a suite compares, has no trained classes."
    return Problem("run", run.id, message, fix)


def _metric_problems(run: Run, request: EvaluationRequest, allowed: AllowedPaths) -> list[Problem]:
    problems: list[Problem] = []
    if ACCURACY in request.metrics and not traits_of(run.config).has_classes:
        fix = "Use exact_match, which is the share of answers that are exactly right."
        problems.append(Problem("metrics", ACCURACY, "is for runs of the task classification.", fix))
    problems += allowed_rewards.problems(request.rewards, allowed, "metrics")
    problems += allowed_rewards.file_problems(request.own, request.rewards)
    problems += (
        reward_models.problems(map(reward_models.of, request.reward_models), allowed, "metrics") if not problems else []
    )
    if JUDGE in request.metrics and request.judge:
        refused = allowed_rewards.judge_problem(request.judge.url, trusted=allowed.data is None)
        problems += [refused] if refused else []
    return problems


def _lm_eval_problems(request: EvaluationRequest, allowed: AllowedPaths) -> list[Problem]:
    """Where workers are elsewhere, they check themselves whether it is installed."""
    files = [task for task in request.lm_eval if not _TASK_NAME.fullmatch(task)]
    if files and allowed.data is not None:  # a task's file can name code
        message = "is not the name of a task; only the user who runs the server may name files."
        return [Problem("lm_eval", ", ".join(files), message, "Give names of tasks that lm-eval has.")]
    if get_settings().broker_url or find_spec("lm_eval") is not None:
        return []
    tasks = ", ".join(request.lm_eval)
    return [Problem("lm_eval", tasks, "needs the package lm-eval, which is not installed.", _INSTALL_FIX)]


def _with_data(request: EvaluationRequest, run: Run, data: str, allowed: AllowedPaths, owner: str) -> EvaluationRequest:
    dataset = find_data("data", data, allowed)
    if isinstance(dataset, Problem):
        raise ConfigError([dataset])
    if isinstance(dataset, Path):
        dataset = run_data.add("data", dataset, request.columns, disk_quota.measured(owner)).dataset
    columns = request.columns or dataset.columns_map
    if not columns and dataset.row_format == UNKNOWN:
        columns = run.config.get("columns")
    _check_format(dataset, columns)
    if request.comparing and run_data.row_format_of(dataset, columns) == RowFormat.PROMPT:
        fix = f"Use metrics that need none: {WITHOUT_EXPECTED}. {ANSWERS_FIX}"
        raise ConfigError([Problem("metrics", ", ".join(request.comparing), NO_EXPECTED, fix)])
    path = str(datasets.path_of(dataset).absolute())
    return request.model_copy(update={"path": path, "name": dataset.name, "sha256": dataset.sha256, "columns": columns})


def _check_format(found: Dataset, columns: str | None) -> None:
    if columns or found.row_format != UNKNOWN:
        return
    message = f"has columns of no known format: {', '.join(found.columns)}."
    raise ConfigError([Problem("data", found.name, message, UNKNOWN_FIX)])
