"""Every form of a finished run's result: what it is for, its size, and where it is or the command that makes it."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field
from sqlmodel import Session

from app.documents import Document, Stored, columns
from app.format import numbers
from app.format.evaluation_text import label
from app.format.numbers import capitalized
from app.format.run_text import result_noun
from app.format.snippets import Snippet, Used, snippets
from app.texts import _
from training.config.name_values import template_arguments
from training.config.run_config import RunConfig
from training.config.yaml_file import to_yaml
from training.data.mapping import apply, format_of, parse_mapping
from training.data.to_examples import to_example
from training.errors import DataError
from training.model_info.chat_template import ChatTemplate, chat_template_of
from training.model_info.config_json import local_folder
from training.rules.outputs import can_merge
from training.run_folder import checkpoints, paths
from training.run_folder.derived import ADAPTER_GGUF_FILE, GGUF_TYPES, GgufType
from training.scoring.paired import Paired, Verdict
from worker.results import fetching, template_turns
from worker.results.results import GGUF_ADAPTER, GGUF_FORMS, MERGED, file_of
from worker.settings import get_settings
from worker.store import builds
from worker.store.tables import Build, Dataset, Run, Status

_RANDOM_LOSS = math.log(300_000)  # nats per token; the largest vocabularies have about 262,000 tokens


@columns(
    Build,
    ("run_id", "form", "owner", "created_at", "started_at", "finished_at", "attempt", "stopping", "phase", "done",
     "total", "error", "reason", "notes"),
)  # fmt: skip
class BuildAnswer(Stored):
    """A build: its progress, and how it ended. `address` is the download, empty before. Times are seconds since the epoch."""

    status: Status
    address: str


class BuildList(Document):
    """The builds of a run, newest first."""

    builds: list[BuildAnswer]


@dataclass(frozen=True)
class Output:
    """A form of the result: `address` is its download; without one, `command` makes it, and `note` says what is missing.

    Forms of one `group` are variants of the same thing. `form` is what POST /api/runs/RUN/builds/FORM makes; `build` is the latest.
    """

    name: str
    purpose: str
    address: str = ""
    bytes: int | None = None
    command: str = ""
    note: str = ""
    group: str = ""
    form: str = ""
    build: BuildAnswer | None = None


class Outputs(Document):
    """Every form of a run's result, and snippets that use it."""

    outputs: list[Output]
    snippets: list[Snippet]
    ruined: str = Field(description="how it is known that training has ruined the model; empty otherwise")


def document(session: Session, run: Run) -> Outputs:
    """The outputs of a run, and the snippets that use its result."""
    used = used_by_snippets(session, run)
    requested = builds.of_run(session=session, run_id=run.id)
    return Outputs(outputs=outputs(run, requested), snippets=snippets(used) if used else [], ruined=ruined(run))


def ruined(run: Run) -> str:
    """How it is known that training has ruined the model, as a sentence; empty if it is not known.

    Its loss on held-out rows is higher than that of a model which draws each token at random from the largest vocabulary, or its
    answers are shown to be worse than before training.
    """
    summary = run.summary or {}
    if summary.get("eval_perplexity") is not None and (summary.get("eval_loss") or 0) > _RANDOM_LOSS:
        loss = numbers.decimal(summary["eval_loss"])
        return _("The loss on held-out rows is {loss}: tokens drawn at random have a lower one.").format(loss=loss)
    changes = (summary.get("answers") or {}).get("changes") or {}
    worse = [label(name) for name, change in changes.items() if Paired.read(change).verdict is Verdict.WORSE]
    if worse and len(worse) == len(changes):
        return _("Held-out answers are worse than before training: {scores}.").format(scores=", ".join(worse))
    return ""


def built(run: Run, item: Build) -> BuildAnswer:
    """A build."""
    address = _address(run, item.form) if item.status is Status.FINISHED else ""
    return BuildAnswer(**item.shown(*BuildAnswer.model_fields), address=address)


def outputs(run: Run, requested: Sequence[Build] = ()) -> list[Output]:
    """The forms of an ended run's result, on this machine or not, and its checkpoints, configuration and log.

    `requested` are its builds.
    """
    latest = {item.form: item for item in requested}
    kept = {path.name for path in checkpoints.sealed(get_settings().runs_dir / run.id)} if run.status.ended else set()
    steps = {step for form in kept | latest.keys() if (step := paths.checkpoint_step(Path(form))) is not None}
    return [_with_build(run, output, latest.get(output.form)) for output in _forms(run, sorted(steps, reverse=True))]


def _with_build(run: Run, output: Output, item: Build | None) -> Output:
    """The form with its latest build; what another machine has built is downloaded from the object store on request."""
    if item is None or not output.form:
        return output
    kept = item.status is Status.FINISHED and get_settings().store_url and not output.address
    address = _address(run, output.form) if kept else output.address
    return replace(output, address=address, build=built(run, item))


def _address(run: Run, form: str) -> str:
    """The download of a form that can be built."""
    name, base = file_of(form), f"/api/runs/{run.id}"
    if (kind := GGUF_FORMS.get(form)) and kind is not GgufType.TRAINED:
        return f"{base}/{GgufType.TRAINED.file}?type={kind.value}"
    step = paths.checkpoint_step(Path(form))
    return f"{base}/{name}" if step is None else f"{base}/checkpoint.zip?step={step}"


def _forms(run: Run, steps: Sequence[int]) -> list[Output]:
    run_dir, base = get_settings().runs_dir / run.id, f"/api/runs/{run.id}"
    found = [*_configured(run, run_dir, base, steps)] if run.is_configured else []
    log_bytes = _size(run_dir / paths.LOG_FILE)
    found.append(
        Output(_("Log"), _("What the training process printed, without secrets."), f"{base}/log.txt", log_bytes)
    )
    if answers := _size(run_dir / paths.ANSWERS_FILE):
        found.append(
            Output(_("Answers"), _("Held-out rows answered before and after."), f"{base}/answers.jsonl", answers)
        )
    purpose = _("All of this and the metrics in one file, for another Lathe: lathe restore FILE.")
    return [*found, Output(_("Whole run"), purpose, f"{base}/archive.zip")]


def _configured(run: Run, run_dir: Path, base: str, steps: Sequence[int]) -> Iterator[Output]:
    """What cannot be offered without the run's configuration."""
    if run.has_result:
        yield from _results(run, run_dir, base)
    yield from (_checkpoint(run, step) for step in steps)
    config = to_yaml(run.asked).encode()
    yield Output(_("Configuration"), _("Starts the same run: lathe run FILE."), f"{base}/config.yaml", len(config))


def used_by_snippets(session: Session, run: Run) -> Used | None:
    """What snippets need to know of a finished run; None if its result is not on this machine, or its configuration damaged."""
    run_dir = get_settings().runs_dir / run.id
    folder = paths.saved_result(run_dir)
    if not run.has_result or folder is None or not run.is_configured:
        return None
    config, merged = run.asked, run_dir / paths.MERGED_FOLDER
    template = chat_template_of(folder)
    chats = template is not None and _chats(session.get(Dataset, run.dataset_id or ""), config)
    options = template_arguments(config.chat_template_kwargs)
    return Used(
        run_id=run.id,
        name=run.name,
        config=config,
        folder=str(folder),
        merged=str(merged) if merged.is_dir() else "",
        chats=chats,
        own_template=_own_template(template, config),
        template=template,
        turns=template_turns.turns_of(template, options) if template and chats else None,
        classes=tuple((run.summary or {}).get("classes") or ()),
        mergeable=can_merge(config.method) or not config.method.adapts,
        own_ends=(folder / "generation_config.json").is_file(),
    )


def _results(run: Run, run_dir: Path, base: str) -> list[Output]:
    noun, config = result_noun(run.config), run.asked
    fetch = fetching.start(run)
    if fetch or paths.saved_result(run_dir) is None:
        note = _("Its files are on the machine that trained it.")
        if fetch:
            note = fetch.problem or _("Being downloaded from the object store.")
        return [Output(capitalized(_(noun)), _("The trained weights."), note=note)]
    purposes = {
        "adapter": _("Trained weights, tokenizer and card as a zip; PEFT loads it on the base model."),
        "model": _("All weights, tokenizer and card as a zip; transformers loads it."),
    }
    packed = f"lathe export {run.id} -o {noun}.zip"
    found = [_file(capitalized(_(noun)), purposes[noun], f"{base}/{noun}.zip", run_dir / paths.ARCHIVE_FILE, packed)]
    if noun == "adapter":
        found.append(_merged(run, run_dir, base, config))
    if config.task.traits.generates and (noun == "model" or can_merge(config.method)):
        found += [_gguf(kind, run, run_dir) for kind in GGUF_TYPES]
    if GGUF_TYPES and config.method.is_lora and config.task.traits.generates:
        command = f"lathe export {run.id} --gguf --adapter -o adapter.gguf"
        address, path = f"{base}/{ADAPTER_GGUF_FILE}", run_dir / ADAPTER_GGUF_FILE
        purpose = _("For llama.cpp beside the base model's GGUF: --lora FILE.")
        found.append(replace(_file(_("GGUF adapter"), purpose, address, path, command), form=GGUF_ADAPTER))
    card = (paths.saved_result(run_dir) or run_dir) / paths.CARD_FILE
    found.append(_file(_("Model card"), _("Results, data and settings, as hubs show them."), f"{base}/card.md", card))
    return found


def _checkpoint(run: Run, step: int) -> Output:
    """The adapter or model of a checkpoint."""
    group = _("Model of checkpoint") if result_noun(run.config) == "model" else _("Adapter of checkpoint")
    form = f"checkpoint-{step}"
    path = get_settings().runs_dir / run.id / file_of(form)
    purpose = _("The weights as they were at this step, and the tokenizer, as a zip.")
    command = f"lathe gather {run.id} --step {step} --to FOLDER"
    return replace(_file(f"{group} {step}", purpose, _address(run, form), path, command), group=group, form=form)


def _merged(run: Run, run_dir: Path, base: str, config: RunConfig) -> Output:
    purpose = _("The base model with the adapter in its weights; loads without PEFT.")
    if not can_merge(config.method):
        return Output(
            _("Merged model"),
            purpose,
            note=_("Adapters of {method} cannot be merged.").format(method=config.method.value),
        )
    command = f"lathe export {run.id} --merged -o merged.zip"
    merged = _file(_("Merged model"), purpose, f"{base}/{paths.MERGED_FILE}", run_dir / paths.MERGED_FILE, command)
    return replace(merged, form=MERGED)


def _gguf(kind: GgufType, run: Run, run_dir: Path) -> Output:
    """The whole model as GGUF in one of its types."""
    trained = kind is GgufType.TRAINED
    name, option = ("GGUF", "") if trained else (f"GGUF {kind.value}", f" --type {kind.value}")
    command = f"lathe export {run.id} --gguf{option} -o {run.id}.gguf"
    purpose = _("One file for llama.cpp and Ollama. {about}").format(about=_(kind.meaning))
    address = _address(run, kind.form)
    return replace(_file(name, purpose, address, run_dir / kind.file, command), group="GGUF", form=kind.form)


def _own_template(template: ChatTemplate | None, config: RunConfig) -> str:
    """The file of the trained chat template; "" if the base model, in a folder of this machine, has the same."""
    if template is None or template.file is None:
        return ""
    folder = local_folder(config.model)
    base = chat_template_of(folder) if folder else None
    return "" if base and base.text == template.text else str(template.file)


def _file(name: str, purpose: str, address: str, path: Path, command: str = "") -> Output:
    size = _size(path)
    if size is None:
        return Output(name, purpose, command=command, note=_("Not made yet.") if command else _("Not on this machine."))
    return Output(name, purpose, address, size)


def _size(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return None


def _chats(dataset: Dataset | None, config: RunConfig) -> bool:
    """True if the rows of the training data are conversations, as far as its first rows show."""
    if dataset is None:
        return True
    mapped = config.columns or dataset.columns_map
    for row in dataset.sample:
        with contextlib.suppress(DataError, KeyError, TypeError):
            if mapped:
                mapping = parse_mapping(mapped)
                return to_example(apply(mapping, row), format_of(mapping)).messages is not None
            return to_example(row, dataset.row_format).messages is not None
    return True
