"""`python -m worker.evaluations.supervisor EVALUATION_ID ATTEMPT`: one attempt at an evaluation."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training import redaction
from training.config.data_sets import sources
from training.config.run_config import RunConfig
from training.errors import UserError
from training.limited import FOLDER
from training.run_folder.paths import CONFIG_FILE
from training.scoring import request as requests
from training.scoring.fingerprints import fingerprints, of_judge
from worker.allowed_paths import EVERYTHING
from worker.evaluations.cases import add_verdicts
from worker.evaluations.scoring import add_scores, read_records, summarize
from worker.evaluations.submit import folder_of
from worker.machine import devices, processes, programs
from worker.machine.programs import ProgramError, ProgramKilled
from worker.runs import reward_models
from worker.runs.settle import resolve
from worker.settings import get_settings
from worker.store import database, prompt_sets
from worker.store.tables import Evaluation, Run
from worker.store.work import EVALUATION
from worker.supervision.launcher import Launch
from worker.supervision.queued_work import WorkState, WorkSupervisor
from worker.supervision.training_process import environment

_LOOK_SECONDS = 0.5
_ERROR_FILE = "error.json"
_KEPT_LINES = 3
_NO_SHOTS = "Leave shots out."
_NO_ROWS = "Upload the training data again."


class EvaluationFailed(UserError):  # noqa: N818
    """The program that answers the rows failed."""


def evaluate(item: Evaluation, run: Run, state: WorkState, mark: str) -> dict[str, Any]:
    """Does the whole evaluation in its folder and returns its summary, as a column.

    Raises:
        UserError: the program, a metric or the judge failed.
    """
    run_dir, folder = get_settings().runs_dir / run.id, folder_of(item)
    request = item.asked
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (requests.RECORDS_FILE, requests.PROGRESS_FILE, _ERROR_FILE, requests.SUMMARY_FILE):
        (folder / name).unlink(missing_ok=True)
    request = _resolved(request, run)
    if not (run_dir / CONFIG_FILE).is_file():
        fix = "Start the worker on the machine that trained it, or share the data folder."
        raise EvaluationFailed("run", run_dir.name, "has no folder on this machine.", fix)
    if request.path:
        state.progress("comparing with the training rows")
        found = _overlap(run.used, request)
        leaked = tuple(found.pop("leaked", ()))
        state.more = {"overlap": found}
        if request.exclude_leaked_rows:
            request = request.model_copy(update={"leaked": _known(leaked, found)})
    (folder / requests.REQUEST_FILE).write_text(request.model_dump_json(indent=2), encoding="utf-8")
    state.progress("loading model")
    launch = launched(run, item)
    _answer(folder, launch, environment(launch, mark, get_settings()), state)
    return {"summary": {} if state.stopping.is_set() else _scored(run.id, folder, request, state)}


def _resolved(request: requests.EvaluationRequest, run: Run) -> requests.EvaluationRequest:
    """The request with the folders of its reward models, and the training data that its prompts begin with.

    Raises:
        EvaluationFailed: one was deleted since, or is not on this machine.
    """
    if request.shots or request.of_training:
        request = request.model_copy(update={"training": _training(run, request)})
    found = [reward_models.with_folder(reward) for reward in request.reward_models]
    for problem in reward_models.problems(map(reward_models.of, found), EVERYTHING, "metrics"):
        raise EvaluationFailed(problem.field, problem.value, problem.message, problem.fix)
    return request.model_copy(update={"options": request.options | {one.name: one.document() for one in found}})


def _training(run: Run, request: requests.EvaluationRequest) -> tuple[tuple[str, str | None, str], ...]:
    """The data sets that the run trained on: path, columns, name."""
    field, value, fix = ("data", request.name, _NO_ROWS) if request.of_training else ("shots", request.shots, _NO_SHOTS)
    why = "" if request.compares else "The training data was deleted, or is not shared with the run's owner."
    try:
        config = resolve(run.used)
    except UserError as error:
        raise EvaluationFailed(field, value, f"needs the training rows: {error.problem.message}", fix) from None
    if why:
        raise EvaluationFailed(field, value, f"needs the training rows. {why}", fix)
    return tuple((one.path, one.columns or config.columns, one.name) for one in sources(config.data))


def _scored(run_id: str, folder: Path, request: requests.EvaluationRequest, state: WorkState) -> dict[str, Any]:
    """Scores the answers and returns the summary."""
    told = _summary(folder)
    if request.lm_eval:
        return told
    if request.prompt_set:
        _keep_answers(run_id, folder, request)
    troubles = add_scores(folder, request, state.progress, state.stopping.is_set)
    if request.has_cases and not state.stopping.is_set():
        told["cases"] = add_verdicts(folder, request, state.progress, state.stopping.is_set)
    metrics = () if request.has_cases else request.metrics  # each case has its own
    unbounded = [reward.name for reward in request.reward_models]
    told[requests.CARD] |= {"metrics": fingerprints(request), "judge": of_judge(request.judge)}
    failed = told.pop("troubles", {}) | {name: asdict(one) for name, one in troubles.items()}
    return summarize(read_records(folder), metrics, unbounded) | told | ({"troubles": failed} if failed else {})


def launched(run: Run, item: Evaluation) -> Launch:
    """The program that answers the rows, on the evaluation's device."""
    run_dir = get_settings().runs_dir / run.id
    argv = [sys.executable, "-m", programs.EVALUATE.module, str(run_dir.absolute()), item.id]
    env = devices.variables([item.device]) | {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "true",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)))),
    }
    return Launch(argv, env)


def _summary(folder: Path) -> dict[str, Any]:
    """What the program says besides the answers: their score card, the results of lm-eval, whether vLLM answered."""
    try:
        return dict(json.loads((folder / requests.SUMMARY_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def _known(leaked: tuple[int, ...], overlap: dict[str, Any]) -> tuple[int, ...]:
    """The leaked rows. Raises EvaluationFailed if they are not known."""
    if problem := overlap.get("problem"):
        fix = "Evaluate without exclude_leaked_rows."
        raise EvaluationFailed("exclude_leaked_rows", True, f"needs the training rows. {problem}", fix)
    return leaked


def _overlap(config: RunConfig, request: requests.EvaluationRequest) -> dict[str, Any]:
    """The overlap, with all `leaked` rows; only the reason as `problem` if the training data is no longer here."""
    if not request.compares:
        return {"problem": "The training data was deleted, or is not shared with the run's owner."}
    try:
        training = resolve(config)
    except UserError as error:
        return {"problem": f"The training data is not on this machine: {error.problem.message}"}
    sets = [[source.path, source.columns or config.columns, source.name] for source in sources(training.data)]
    answered = [request.path, request.columns, request.name]
    rows = None if request.exclude_leaked_rows else request.rows  # of those that are left, the first ones are answered
    asked = {"evaluation": answered, "training": sets, "rows": rows}
    reads = tuple(Path(path) for path, *_ in (answered, *sets) if path)
    try:
        limits = programs.OVERLAP.limits(*reads)
        return dict(programs.run_for_json(programs.OVERLAP, [], limits, text=json.dumps(asked)))
    except ProgramError as error:
        return {"problem": f"The training rows could not be read: {str(error).rstrip('.')}."}


def _keep_answers(run_id: str, folder: Path, request: requests.EvaluationRequest) -> None:
    """Stores the answers with their prompt set, unless it was deleted or changed since, or they are too long for it: the evaluation
    has them too."""
    answers = [{"text": record["answer"]} for record in read_records(folder)]
    asked = [prompt.user for prompt in request.prompts]
    with contextlib.suppress(prompt_sets.PromptSetNotFound, prompt_sets.BadPromptSet), database.write() as session:
        kept = prompt_sets.get(session=session, set_id=request.prompt_set)
        if [prompt["user"] for prompt in kept.prompts] == asked:
            prompt_sets.keep_answers(session=session, set_id=kept.id, model=run_id, answers=answers)


def _answer(folder: Path, launch: Launch, env: dict[str, str], state: WorkState) -> None:
    child = processes.start_child(launch.argv, output=folder / requests.OUTPUT_FILE, cwd=FOLDER, env=env)
    while child.poll() is None:
        processes.wait_for_end(child, _LOOK_SECONDS)
        _read_progress(folder, state)
    if child.returncode and not state.stopping.is_set():
        raise _failure(folder, child) from (ProgramKilled() if child.returncode == -signal.SIGKILL else None)


def _read_progress(folder: Path, state: WorkState) -> None:
    try:
        *_, last = (folder / requests.PROGRESS_FILE).read_text(encoding="utf-8").splitlines()
        state.progress(**json.loads(last))
    except (OSError, ValueError):  # nothing yet, or a line that is being written
        return


def _failure(folder: Path, child: "subprocess.Popen[bytes]") -> UserError:
    try:
        error = json.loads((folder / _ERROR_FILE).read_text(encoding="utf-8"))
        return EvaluationFailed(error["field"], error["value"], error["message"], error["fix"])
    except (OSError, ValueError, KeyError):
        lines = (folder / requests.OUTPUT_FILE).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = " ".join(lines[-_KEPT_LINES:])[-500:] or f"exit code {child.returncode}"
    fix = f"The file {requests.OUTPUT_FILE} of the evaluation has the whole output."
    return EvaluationFailed("evaluation", folder.name, f"The program failed: {said}", fix)


def main() -> int:
    """Supervises the evaluation in the arguments."""
    redaction.start_logging()
    return WorkSupervisor(EVALUATION, (sys.argv[1], int(sys.argv[2])), evaluate).run()


if __name__ == "__main__":
    # Threads of the work may still run after a lost lease.
    sys.stdout.flush()
    os._exit(main())
