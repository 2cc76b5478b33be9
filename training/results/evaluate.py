"""`python -m training.results.evaluate RUN_FOLDER EVALUATION_ID`: answers the rows of a data set with a run's model, with scores.

It reads request.json in the evaluation's folder, reports its progress in progress.jsonl, and writes answers.jsonl: the answer to
each row with its built-in scores. With tasks of lm-eval it writes their results into summary.json instead.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.chat.tokenizer import prompt_ids, prompt_text
from training.config.name_values import template_arguments
from training.config.run_config import RunConfig
from training.config.task import Task
from training.data.example import Example
from training.data.example import prompt_text as example_text
from training.data.rows import DataFile, read_files
from training.errors import DataError, UserError
from training.model_info.folder import check_weights
from training.models.loading import DTYPES, check_files_finite, check_finite, load_model, load_tokenizer, model_class
from training.models.plain_decoding import own_values
from training.models.reward_model import load_scorers, scores_of
from training.ranks.distributed import compute_device, local_machine
from training.ranks.stopping import die_with_parent
from training.redaction import redact_output
from training.results.answers import answer_all, answer_with_classes
from training.results.by_vllm import answers as vllm_answers
from training.results.carded import card
from training.results.few_shot import shots, with_shots
from training.results.forgetting import forgotten
from training.results.merging import last_summary
from training.results.trained_rows import TrainedRows, trained_rows
from training.run_folder import checkpoints
from training.run_folder.paths import CONFIG_FILE, checkpoints_dir, saved_result
from training.run_folder.record import saved_template
from training.scoring.request import (
    ACCURACY,
    BASE,
    BASELINE,
    BEFORE,
    CARD,
    COLUMNS,
    PLAIN,
    PROGRESS_FILE,
    RECORDS_FILE,
    REQUEST_FILE,
    RESULT,
    SUMMARY_FILE,
    TRAINING_ROWS,
    Decoding,
    EvaluationRequest,
    evaluation_dir,
)
from training.scoring.text_scores import score
from training.trainer.answering import Question, questions
from training.vllm.limits import NotLoaded
from training.vllm.models import models_of
from training.vllm.server import command

ERROR_FILE = "error.json"
PACKAGE = "lm_eval"
_ALL_ROWS = 2**31
_SCORED_ROWS = 16  # at once, by a reward model
_NOT_BY_VLLM = "vLLM does not apply the model's own generation_config.json."
_NOT_BOTH = "Cases compare with the model before training, which transformers loads too."
_NO_WEIGHTS = "Evaluate the result, or a checkpoint of a run on one device or with DDP."


def evaluate(run_dir: Path, folder: Path) -> None:
    """Answers and scores the rows, or runs the tasks of lm-eval. Raises UserError if there is no such result or checkpoint, the
    task has no answers, or no row has a prompt."""
    request = EvaluationRequest.model_validate_json((folder / REQUEST_FILE).read_text(encoding="utf-8"))
    config = RunConfig.model_validate_json((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    progress = _reporter(folder / PROGRESS_FILE)
    if request.lm_eval:
        check_installed(request.lm_eval)
    weights = find_weights(run_dir, config, request.source)
    progress("loading model", 0, 0)
    tokenizer, device = load_tokenizer(config), compute_device()
    classes = tuple(last_summary(run_dir).get("classes") or ()) if config.task.traits.has_classes else ()

    def load() -> PreTrainedModel | PeftModel:
        return load_weights(config, weights, tokenizer, classes).to(device).eval()

    if request.lm_eval:
        model = load()
        progress("running lm-eval", 0, 0)
        results = run_tasks(model, tokenizer, request.lm_eval, request.rows)
        _summarize(folder, {"lm_eval": results})
        return
    served = with_saved_template(tokenizer, weights)
    trained = trained_rows(config, request, run_dir, folder, tokenizer) if request.of_training else None
    prompts = prompted(config, request, served) if request.prompts else ask(config, request, tokenizer, trained)
    befores: list[str] = []
    longest, by_vllm, own = request.max_new_tokens or config.max_new_tokens, None, None
    if config.task.traits.has_classes:
        answers = answer_with_classes(load(), prompts, tokenizer, config.max_length, classes, progress)
    else:
        if command() and (request.decoding is Decoding.MODEL or request.has_cases):
            reason = _NOT_BOTH if request.has_cases else _NOT_BY_VLLM
            _summarize(folder, {"engine": {"name": "transformers", "reason": reason}})
        elif command():
            by_vllm = _answered_by_vllm(config, weights, prompts, tokenizer, longest, folder, progress)
        if by_vllm is None:
            model = load()
            own = own_values(model) if request.decoding is Decoding.MODEL else None
            counted = _counting(progress, len(prompts))
            answers = answer_all(model, prompts, tokenizer, longest, counted, request.decoding)
            if request.has_cases and weights is not None:
                befores = _before(config, request, model, tokenizer, longest, folder, progress)
        else:
            answers = by_vllm
    found = card(
        config, served if request.prompts else tokenizer, _dtype(config),
        data=(request.name, request.sha256, request.columns), rows=len(answers), longest=longest, source=request.source,
        weights=weights, engine="vllm" if by_vllm else "", own=own, shots=request.shots,
        trained_template=tokenizer.chat_template,
    )  # fmt: skip
    _summarize(folder, {CARD: found.document()} | ({TRAINING_ROWS: trained.total} if trained else {}))
    scores = _scored_by_models(config, request, prompts, answers, device, folder, progress)
    with (folder / RECORDS_FILE).open("w", encoding="utf-8") as stream:
        for index, (question, answer) in enumerate(zip(prompts, answers, strict=True)):
            record = _record(question, answer, request.built_in)
            record |= {BEFORE: befores[index]} if befores else {}
            record["scores"] |= {name: values[index] for name, values in scores.items()}
            stream.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")


def check_installed(tasks: Sequence[str]) -> None:
    """Checks that lm-eval is installed on this machine. Raises UserError if it is not."""
    if find_spec(PACKAGE) is None:
        fix = "Install it on the worker's machine, in the environment of Lathe: pip install lm-eval"
        raise UserError("lm_eval", ", ".join(tasks), "needs the package lm-eval, which is not installed.", fix)


def run_tasks(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tasks: Sequence[str], limit: int | None
) -> dict[str, dict[str, Any]]:
    """Returns the metrics of each task by name, as lm-eval computes them on the first `limit` rows, with its standard errors.
    Raises UserError if lm-eval does not know a task, or cannot run it."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    try:
        found = simple_evaluate(
            HFLM(pretrained=model, tokenizer=tokenizer), tasks=list(tasks), limit=limit, log_samples=False
        )
    except (KeyError, ValueError, OSError) as error:
        fix = "`lm-eval ls tasks` lists the tasks. A task's data is downloaded from its hub."
        raise UserError("lm_eval", ", ".join(tasks), f"could not be run: {error}.", fix) from error
    return {
        task: {name: value for name, value in metrics.items() if isinstance(value, int | float | str)}
        for task, metrics in found["results"].items()
    }


def find_weights(run_dir: Path, config: RunConfig, source: str) -> Path | None:
    """Returns the folder of the result or of the checkpoint; None for the model before training. Raises UserError if there is
    none, it is damaged, or it has no weights that can be loaded alone."""
    if config.task.traits.scores:
        raise UserError("task", "reward", "gives scores to answers, no answers.", "Evaluate a run of another task.")
    if source == BASE:
        if config.task.traits.has_classes:
            fix = "Evaluate the result or a checkpoint."
            raise UserError("source", BASE, "has no trained classes before training.", fix)
        return None
    if source == RESULT:
        if found := saved_result(run_dir):
            check_weights(found, "source", RESULT, f"Give one of: {_steps(run_dir)}.")
            return found
        raise UserError("source", RESULT, "is not in the run's folder.", f"Give one of: {_steps(run_dir)}.")
    checkpoint = checkpoints_dir(run_dir) / source
    reason = checkpoints.fault(checkpoint) if checkpoint.is_dir() else "it does not exist"
    if reason:
        raise UserError("source", source, f"cannot be used: {reason}.", f"Give one of: {_steps(run_dir)}.")
    pattern = "adapter_model.safetensors" if config.method.adapts else "model*.safetensors"
    if not list(checkpoint.glob(pattern)):
        raise UserError("source", source, "has its weights in shards of the ranks.", _NO_WEIGHTS)
    if config.method.is_lora and config.lora_init.has_own_base:
        message = f"belongs to base weights that {config.lora_init.value} changed."
        raise UserError("source", source, message, "Evaluate the result, which belongs to the original base model.")
    return checkpoint


def load_weights(
    config: RunConfig, weights: Path | None, tokenizer: PreTrainedTokenizerBase, classes: tuple[str, ...]
) -> PreTrainedModel | PeftModel:
    """Returns the model with the weights of a folder; before training for None. Raises UserError if a weight is not finite."""
    dtype = _dtype(config)
    if weights is not None and not config.method.adapts:
        model = model_class(config.task).from_pretrained(str(weights), dtype=dtype)
    else:
        model = load_model(config, dtype, len(tokenizer), classes)
    model.config.use_cache = True
    if not config.task.traits.generates:
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    if weights is not None and config.method.adapts:
        model = PeftModel.from_pretrained(model, str(weights))
    check_finite(model, "source", weights.name if weights else BASE)
    return model


def _dtype(config: RunConfig) -> torch.dtype:
    return DTYPES[local_machine().precision_of(config.precision)]


def ask(
    config: RunConfig,
    request: EvaluationRequest,
    tokenizer: PreTrainedTokenizerBase,
    trained: TrainedRows | None = None,
) -> list[Question]:
    """Returns the rows that are answered: the first ones with a prompt, or those `trained` rows that have what the metrics need.
    Raises UserError if no row has a prompt and an answer."""
    files = [DataFile(Path(request.path), request.columns, request.name)] if trained is None else trained.files
    leaked = frozenset(request.leaked)
    before, plain, compares = shots(request), dict[int, str](), bool(request.comparing)
    columns: dict[int, dict[str, Any]] = {}
    scored: dict[int, Example] = {}

    def examples() -> Iterator[tuple[int, Example]]:
        for number, _, _, row, example in read_files(files):
            if example and number not in leaked and (trained is None or _is_of(trained, number, example, compares)):
                if request.own:
                    columns[number] = row
                if request.reward_models:
                    scored[number] = example
                if before:
                    plain[number] = example_text(example)
                yield number, with_shots(example, before)

    # A class is predicted from the whole prompt, as an encoder-decoder reads it.
    task = Task.SEQ2SEQ if config.task.traits.has_classes else config.task
    try:
        found = questions(examples(), config.model_copy(update={"task": task}), tokenizer, request.rows or _ALL_ROWS)
    except DataError as error:
        message = f"{f'row {error.line} ' if error.line else ''}{error.message}"
        raise UserError("data", request.name, message, error.fix) from error
    if not found and leaked:
        message = "has no row with a prompt that is not in the training rows."
        fix = "Choose other rows, or evaluate these with the leaked ones."
        raise UserError("exclude_leaked_rows", request.name, message, fix)
    if not found:
        fix = "Choose rows with a prompt and an answer, or give --columns."
        raise UserError("data", request.name, "has no rows with a prompt.", fix)
    return [
        replace(
            question,
            expected=question.expected.strip(),
            plain=plain.get(question.row, question.plain) if request.is_scored_later else "",
            columns=columns.get(question.row, {}),
            example=scored.get(question.row),
        )
        for question in found
    ]


def _is_of(trained: TrainedRows, number: int, example: Example, compares: bool) -> bool:
    """True for one of the rows, if it has an answer with which metrics can compare, or they need none."""
    return number in trained.numbers and (example.answered or not compares)


def with_saved_template(tokenizer: PreTrainedTokenizerBase, weights: Path | None) -> PreTrainedTokenizerBase:
    """A tokenizer with the chat template in the folder of the weights, if there is one."""
    if not (saved := saved_template(weights) if weights else None):
        return tokenizer
    served = copy(tokenizer)
    served.chat_template = saved
    return served


def _before(
    config: RunConfig,
    request: EvaluationRequest,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    longest: int,
    folder: Path,
    progress: Callable[[str, int, int], None],
) -> list[str]:
    """The answers of the model before training to the cases. The summary says what was forgotten."""
    asked = prompted(config, request, tokenizer)
    base = nullcontext(model) if config.method.adapts else nullcontext(_whole_base(config, tokenizer, model.device))

    @contextmanager
    def before() -> Iterator[Any]:
        with model.disable_adapter() if config.method.adapts else nullcontext(), base as found:
            yield found

    with before() as untrained:
        answers = answer_all(untrained, asked, tokenizer, longest, _counting(progress, len(asked)), request.decoding)
    outside = [
        (question.tokens, answer)
        for question, answer, prompt in zip(asked, answers, request.prompts, strict=True)
        if prompt.expect == BASELINE
    ]
    progress("measuring what was forgotten", 0, 0)
    _summarize(folder, {"forgetting": forgotten(model, before, tokenizer, outside, request.text)})
    return answers


def _whole_base(config: RunConfig, tokenizer: PreTrainedTokenizerBase, device: torch.device) -> Any:
    return load_weights(config, None, tokenizer, ()).to(device).eval()


def prompted(config: RunConfig, request: EvaluationRequest, tokenizer: PreTrainedTokenizerBase) -> list[Question]:
    """Returns the prompts of a prompt set, rendered as they are served: by the chat template that is saved with the weights.

    Raises:
        UserError: the chat template cannot render one.
    """
    found, arguments = [], dict(template_arguments(config.chat_template_kwargs))
    for number, prompt in enumerate(request.prompts):
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        text, is_chat = prompt.user, prompt.mode != "text"
        try:
            if is_chat:
                text = prompt_text(tokenizer, [*system, {"role": "user", "content": prompt.user}], arguments)
        except Exception as error:  # a template is a program and can raise any exception
            message = f"cannot be rendered by the model's chat template: {error}."
            raise UserError(request.name, f"prompt {number + 1}", message, "Ask it as plain text.") from error
        tokens = prompt_ids(tokenizer, text, templated=is_chat)
        found.append(Question(number, prompt.user, tokens, prompt.expected))
    return found


def _answered_by_vllm(
    config: RunConfig,
    weights: Path | None,
    prompts: list[Question],
    tokenizer: PreTrainedTokenizerBase,
    longest: int,
    folder: Path,
    progress: Callable[[str, int, int], None],
) -> list[str] | None:
    """The answers; None if vLLM cannot load the model. The summary says which program answers, and why."""
    if weights is not None:
        check_files_finite(weights, "source", weights.name)
    models = models_of(config, weights, _dtype(config))
    name = next(iter(models.adapters), models.name)
    reason, found = "", None
    try:
        (found,) = vllm_answers(models, [name], prompts, tokenizer, longest, _counting(progress, len(prompts)))
    except NotLoaded as error:
        reason = str(error)
    _summarize(folder, {"engine": {"name": "transformers" if reason else "vllm", "reason": reason}})
    return found


def _scored_by_models(
    config: RunConfig,
    request: EvaluationRequest,
    asked: Sequence[Question],
    answers: Sequence[str],
    device: torch.device,
    folder: Path,
    progress: Callable[[str, int, int], None],
) -> dict[str, list[float | None]]:
    """The scores of the answers by the reward models among the metrics. The summary says what went wrong with some of them.
    Raises UserError if a model cannot be loaded, or scores no answer."""
    rewards = request.reward_models
    examples = [question.example for question in asked if question.example]
    if not rewards or not examples:
        return {}
    progress("scoring", 0, len(asked))
    if device.type == "cuda":
        torch.cuda.empty_cache()  # of the model that has answered
    scorers = load_scorers(rewards, config, local_machine().precision_of(config.precision), device, _SCORED_ROWS)
    found = scores_of(scorers, examples, answers)
    troubles = {name: trouble for name, (_, trouble) in found.items() if trouble}
    if name := next((name for name, trouble in troubles.items() if trouble.failed == len(answers)), None):
        raise UserError(
            "metrics", name, f"scores no answer: {troubles[name].sentence}.", "Choose another reward model."
        )
    if troubles:
        _summarize(folder, {"troubles": {name: asdict(trouble) for name, trouble in troubles.items()}})
    return {name: values for name, (values, _) in found.items()}


def _summarize(folder: Path, values: dict[str, Any]) -> None:
    """Adds to what the program says besides the answers."""
    file = folder / SUMMARY_FILE
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(before | values), encoding="utf-8")


def _counting(progress: Callable[[str, int, int], None], total: int) -> Callable[[int], None]:
    """A function that adds rows to those that are answered, and reports them from the first batch on."""
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        if count:
            progress("answering", done, total)

    return step


def _record(question: Question, answer: str, metrics: list[str]) -> dict[str, Any]:
    exact = float(answer == question.expected)
    known = {"exact_match": exact, ACCURACY: exact}
    if set(metrics) - known.keys():
        known |= score(answer, question.expected)
    columns = {COLUMNS: question.columns} if question.columns else {}
    plain = {PLAIN: question.plain} if question.plain not in ("", question.prompt) else {}
    return {
        "row": question.row, "prompt": question.prompt, "expected": question.expected, "answer": answer,
        "scores": {name: known[name] for name in metrics},
    } | columns | plain  # fmt: skip


def _reporter(path: Path) -> Callable[[str, int, int], None]:
    def report(phase: str, done: int, total: int) -> None:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"phase": phase, "done": done, "total": total}) + "\n")

    return report


def _steps(run_dir: Path) -> str:
    known = ["result"] if saved_result(run_dir) else []
    kept = checkpoints.sealed(run_dir) if checkpoints_dir(run_dir).is_dir() else []
    return ", ".join([*known, *(path.name for path in kept), BASE])


def main(run_dir: Path, evaluation_id: str) -> int:
    """Evaluates; writes a user's error into error.json. Returns the exit status."""
    die_with_parent()
    redact_output()
    folder = evaluation_dir(run_dir, evaluation_id)
    try:
        evaluate(run_dir, folder)
    except UserError as error:
        problem = vars(error.problem) | {"value": str(error.problem.value)}
        (folder / ERROR_FILE).write_text(json.dumps(problem, default=str), encoding="utf-8")
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
