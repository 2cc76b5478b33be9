"""The tools: each sends REST requests with the client of the commands, and answers what fits into an agent's context.

A tool that changes something shows first what it would do, and does it with `confirmed=true`. The docstrings are what agents read.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.cli import sent_files
from app.cli.client import Client, connect, path_of
from training.config.fields import settings as declared
from training.errors import UserError
from worker.diagnosis.diagnosis import diagnose as found_in
from worker.diagnosis.log_file import read_log

Json = dict[str, Any]

_LONGEST_TEXT = 2000
_MOST_ITEMS = 40
_RUN = (
    "id", "name", "status", "phase", "step", "total_steps", "owner", "final_loss", "best_loss", "undone", "queue", "latest"
)  # fmt: skip
_LISTED = ("id", "name", "status", "step", "total_steps", "model", "data", "method", "task", "final_loss", "best_loss")
_RENDER_SECONDS, _ANSWER_SECONDS = 120.0, 300.0
NOT_YET = "Nothing was changed. Call the tool again with confirmed=true to do it."


def list_runs(search: str = "", limit: int = 20) -> Json:
    """List training runs, the newest first. `search` filters: words, or conditions such as `status:failed loss<1.5 method:lora`."""
    answer = connect().get("/api/runs", search=search, limit=min(limit, _MOST_ITEMS))
    return {"total": answer["total"], "runs": [_only(run, _LISTED) for run in answer["runs"]]}


def show_run(run: str) -> Json:
    """Show one run: its state, newest metrics, settings that are not the defaults, error, and last events."""
    found = connect().get(_of(run))
    usual = {name: setting.default for name, setting in declared().items()}
    changed = {name: value for name, value in found["config"].items() if value != usual.get(name)}
    events = [f"{event['level']}: {event['message']}" for event in found["events"][-15:]]
    return _short(_only(found, _RUN) | {"settings": changed, "error": found["error"], "events": events})


def diagnose(run: str = "", log: str = "") -> Json:
    """Say why a run of Lathe failed, or any training program by the text of its log: cause, evidence, fix. Give one of the two."""
    if bool(run) == bool(log):
        raise UserError("run", run, "is given together with a log, or neither is.", "Give a run, or the text of a log.")
    if run:
        return _short(connect().get(_of(run, "diagnosis")))
    return _short(found_in(read_log(io.BytesIO(log.encode(errors="replace")))).document())


def list_data(search: str = "") -> Json:
    """List the data sets: id, name, format and rows. Settings name them by id."""
    answer = connect().get("/api/datasets", search=search, limit=_MOST_ITEMS)
    names = ("id", "name", "row_format", "rows", "columns", "owner", "columns_map")
    return {"total": answer["total"], "datasets": [_short(_only(item, names)) for item in answer["datasets"]]}


def add_data(path: str, columns: str = "", confirmed: bool = False) -> Json:
    """Check a data file of this machine and, with confirmed=true, store it as a data set. `columns` maps roles to columns where the
    format is not detected: `prompt=question, completion=answer`; for pairs `prompt=.., chosen=.., rejected=..`."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError("path", path, "is not a file of this machine.", "Give the path of a data file.")
    client, given = connect(), {"name": file.name, "columns": columns or None}
    if not confirmed:
        return _short(sent_files.upload(client, "/api/datasets/check", file, **given)) | {"next": NOT_YET}
    return _short(sent_files.upload(client, "/api/datasets", file, **given))


def describe_settings(search: str = "") -> Json:
    """Describe the settings of a run that match the words (their names, without words): type, default, choices, meaning."""
    words = search.lower().split()
    found = {
        name: setting
        for name, setting in declared().items()
        if all(word in f"{name} {setting.label} {setting.sentence}".lower() for word in words)
    }
    if not words or len(found) > _MOST_ITEMS:
        return {"names": list(found), "next": "Search for some of them to see their meaning."}
    return {
        name: {"default": setting.default, "choices": list(setting.choices or ()), "help": setting.sentence}
        for name, setting in found.items()
    }


def check_run(settings: Json) -> Json:
    """Check the settings of a run without queueing it: what is wrong with the fix, and whether it fits into memory.
    `settings` needs at least model and data, such as {"model": "Qwen/Qwen3-0.6B", "data": "ID or path"}."""
    client = connect()
    values = sent_files.values(client, settings)
    checked = client.send("POST", "/api/checks", json=values)
    return _short(
        checked
        | {"memory": client.text("/api/forecasts", "POST", json=values, params={"form": "text"})[:_LONGEST_TEXT]}
    )


def render_rows(settings: Json) -> Json:
    """Render rows as a run with these settings would train on them, with the parts that carry loss, and faults of the template."""
    client = connect()
    return _short(
        client.send("POST", "/api/renderings", json=sent_files.values(client, settings), seconds=_RENDER_SECONDS)
    )


def start_run(settings: Json, confirmed: bool = False) -> Json:
    """Queue a training run. Without confirmed=true it is only checked. Settings as for check_run."""
    if not confirmed:
        return check_run(settings) | {"next": NOT_YET}
    client = connect()
    return _only(client.submit("/api/runs", sent_files.values(client, settings)), _RUN)


def stop_run(run: str, confirmed: bool = False) -> Json:
    """Stop a run; it saves a checkpoint first, from which it can be resumed."""
    if not confirmed:
        return show_run(run) | {"next": NOT_YET}
    return _only(connect().send("POST", _of(run, "stop")), _RUN)


def resume_run(run: str, confirmed: bool = False) -> Json:
    """Resume a failed, stopped or diverged run from its last checkpoint."""
    if not confirmed:
        return show_run(run) | {"next": NOT_YET}
    return _only(connect().send("POST", _of(run, "resume")), _RUN)


def compare_runs(runs: list[str]) -> Json:
    """Compare up to 50 runs: results, and the settings that differ, as a Markdown table."""
    return {"table": connect().text("/api/compare.md", params={"runs": ",".join(runs)})[:20_000]}


def evaluate_run(run: str, data: str, metrics: list[str], rows: int = 100, confirmed: bool = False) -> Json:
    """Evaluate a finished run on a data set (id or path): `metrics` are names such as exact_match, json_fields, contains. Without
    confirmed=true it is only described. Scores appear in list_evaluations when a worker has computed them."""
    client = connect()
    asked = {"data": data, "metrics": metrics, "rows": rows}
    if not confirmed:
        return {"run": run, "evaluation": asked, "next": NOT_YET}
    return _short(client.send("POST", _of(run, "evaluations"), json=asked | {"data": sent_files.data(client, data)}))


def list_evaluations(run: str) -> Json:
    """List the evaluations of a run with their scores."""
    return _short(connect().get(_of(run, "evaluations")))


def ask_model(model: str, prompt: str, system: str = "", max_tokens: int = 256) -> Json:
    """Ask a trained model (a run's id, RUN:base or RUN:checkpoint-N) a question, greedily. The first one waits for its load."""
    turns = [{"role": "system", "content": system}] if system else []
    body = {
        "model": model,
        "messages": [*turns, {"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    client = connect()  # a model is served by the server, also on this machine
    reached = client if client.remote else Client(client.pages)
    answer = reached.send("POST", "/v1/chat/completions", json=body, seconds=_ANSWER_SECONDS)
    return {"answer": answer["choices"][0]["message"]["content"], "ended": answer["choices"][0]["finish_reason"]}


def export_run(run: str, path: str, confirmed: bool = False) -> Json:
    """Write the trained adapter or model of a run as a zip file on this machine."""
    target = Path(path).expanduser()
    if target.exists():
        raise UserError("path", path, "exists already.", "Give another name.")
    if not confirmed:
        return _only(show_run(run), _RUN) | {"would_write": str(target), "next": NOT_YET}
    connect().download(_of(run, "adapter.zip"), target)
    return {"written": str(target), "bytes": target.stat().st_size}


READING = (
    list_runs, show_run, diagnose, list_data, describe_settings, check_run, render_rows, compare_runs, list_evaluations, ask_model
)  # fmt: skip
CHANGING = (add_data, start_run, stop_run, resume_run, evaluate_run, export_run)
"""Those with `confirmed`."""
TOOLS: tuple[Callable[..., Json], ...] = (*READING, *CHANGING)


def _of(run: str, part: str = "") -> str:
    return path_of("runs", run, f"/{part}" if part else "")


def _only(document: Json, names: tuple[str, ...]) -> Json:
    return {name: document[name] for name in names if document.get(name) not in (None, "", {}, [])}


def _short(document: Any) -> Json:
    """The document with long texts and lists cut, and what was cut said."""
    return {name: _cut(value) for name, value in document.items()}


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]} … ({len(value) - _LONGEST_TEXT:,} more characters)"
    if isinstance(value, list):
        more = [f"… ({len(value) - _MOST_ITEMS:,} more)"] if len(value) > _MOST_ITEMS else []
        return [*map(_cut, value[:_MOST_ITEMS]), *more]
    if isinstance(value, dict):
        return _short(value)
    return value
