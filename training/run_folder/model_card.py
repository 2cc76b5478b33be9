"""The model card of a result (README.md with results, training, data, versions and configuration, as model hubs read it), and its
upload to a hub. The token comes from the environment only; it is never stored or printed."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.config import name_values
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.config.task import Task
from training.config.yaml_file import to_yaml
from training.redaction import markdown_text
from training.run_folder.evaluated import evaluated
from training.run_folder.paths import CARD_FILE
from training.run_folder.record import Lineage, hardware, shared, versions
from training.scoring.paired import Paired, in_words
from training.units import NONE, decimal

if TYPE_CHECKING:
    import huggingface_hub
import os

from training.errors import UserError

_ANSWER_METRICS = {
    "exact_match": "Exact match", "f1": "Token F1", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"
}  # fmt: skip
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")

_PARITY = "Parity with the trained model"
_PARITY_SECTION = re.compile(rf"## {_PARITY}\n.*?(?=^## )", re.DOTALL | re.MULTILINE)
_NEXT_SECTION = "## Versions\n"

Rows = list[tuple[str, str]]


def write_card(folder: Path, config: RunConfig, summary: dict[str, Any], lineage: Lineage, machine: Machine) -> None:
    """Writes README.md into the folder of a result: an adapter, a model or a merged model."""
    kind = folder.name if config.method.adapts else "model"
    base = markdown_text(shared(config).model)
    parts = [
        f"# {markdown_text(lineage.name or shared(config).title)}",
        {
            "adapter": f"An adapter for {base}, trained with Lathe.",
            "merged": f"{base} with an adapter merged into it, trained with Lathe.",
            "model": f"{base} after full fine-tuning with Lathe.",
        }[kind],
        *_section("Results", _results(config.task, summary)),
        *_section("Training", _training(config, summary, lineage, machine)),
        *_section(
            "Data",
            [(source.role, f"{markdown_text(source.name)}, SHA-256 `{source.sha256}`") for source in lineage.data],
        ),
        *_section(_PARITY, _parity(summary.get("parity"))),
        *_section("Versions", versions()),
        f"## Configuration\n\n{_fenced(to_yaml(shared(config)))}",
    ]
    text = f"---\n{metadata(config, lineage, kind).to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"
    (folder / CARD_FILE).write_text(text, encoding="utf-8")


def write_parity(folder: Path, found: dict[str, Any]) -> None:
    """Replaces the section about parity in the card in `folder`, if there is one."""
    card = folder / CARD_FILE
    if not card.is_file():
        return
    text = _PARITY_SECTION.sub("", card.read_text(encoding="utf-8"), count=1)
    before, mark, after = text.partition(_NEXT_SECTION)
    section = "".join(f"{part}\n\n" for part in _section(_PARITY, _parity(found)))
    card.write_text(before + section + mark + after, encoding="utf-8")


def metadata(config: RunConfig, lineage: Lineage, kind: str) -> "huggingface_hub.ModelCardData":
    """The card's metadata, without names that are not valid on a hub: a hub rejects a card with such a name."""
    import huggingface_hub

    base, relation = shared(config).model, {"adapter": "adapter", "merged": "merge", "model": "finetune"}[kind]
    names = [source.name for source in lineage.data if _HUB_NAME.fullmatch(source.name)]
    base_model: dict[str, Any] = {}
    if _HUB_NAME.fullmatch(base):
        base_model = {"base_model": base, "base_model_relation": relation}
    return huggingface_hub.ModelCardData(
        library_name="peft" if kind == "adapter" else "transformers",
        pipeline_tag=config.task.traits.kind.pipeline,
        tags=["lathe", config.task.value, config.method.value],
        datasets=names or None,
        **base_model,
    )


def _results(task: Task, summary: dict[str, Any]) -> Rows:
    (measure, value), (_, final) = evaluated(task, summary.get("eval_loss")), evaluated(task, summary.get("final_loss"))
    rows = [
        (f"Final training {measure}", decimal(final)),
        (f"Evaluation {measure}", decimal(value)),
        ("Evaluation perplexity", decimal(summary.get("eval_perplexity"))),
    ]
    answers = summary.get("answers") or {}
    for name, label in _ANSWER_METRICS.items():
        if f"{name}_after" in answers:
            before, after = answers[f"{name}_before"], answers[f"{name}_after"]
            change = (answers.get("changes") or {}).get(name)
            shown = f": {in_words(Paired.read(change))}" if change else ""
            rows.append((f"{label}, {answers['rows']} held-out rows", f"{before:.1%} before, {after:.1%} after{shown}"))
    return [row for row in rows if row[1] != NONE]


def _parity(found: dict[str, Any] | None) -> Rows:
    rows = []
    for name, form in (found or {}).get("forms", {}).items():
        if "error" in form:
            continue
        prompts = "equal" if form["prompt_ids_equal"] else "not equal"
        words = f"prompt tokens {prompts}, {form['equal_answers']} of {form['rows']} greedy answers equal"
        words += "" if form["max_logit_difference"] is None else f", logits within {form['max_logit_difference']:.2g}"
        rows.append((name.capitalize(), words + (quality_loss(form) if form.get("lossy") else "")))
    if rows and found and found["template_arguments"]:
        rows.append(("Arguments of the chat template", markdown_text(name_values.written(found["template_arguments"]))))
    return rows


def quality_loss(form: dict[str, Any]) -> str:
    """What a form with rounded weights loses against the trained model, as a further part of a sentence."""
    matches = f", {form['exact_match']} rows answered exactly ({-form['exact_match_loss']:+d})"
    change = form["perplexity_loss"]
    return matches + ("" if change is None else f", perplexity {form['perplexity']:.4g} ({change:+.2g})")


def _training(config: RunConfig, summary: dict[str, Any], lineage: Lineage, machine: Machine) -> Rows:
    strategy = summary["strategy"]
    rows = [
        ("Method", config.method.value),
        ("Optimizer", f"{config.optimizer.value} ({summary['optimizer']})"),
        ("Steps", f"{summary['steps']:,}"),
        ("Trained parameters", f"{summary['trainable_parameters']:,} of {summary['total_parameters']:,}"),
        ("Ran as", f"{strategy['engine']}, {strategy['world_size']} process(es), {strategy['precision']}"),
        ("Hardware", hardware(machine, strategy["world_size"])),
        ("Seed", str(config.seed)),
        ("Run", lineage.run + (f", attempt {lineage.attempts}" if lineage.attempts > 1 else "")),
        ("Cloned from run", lineage.parent),
        ("Teacher", markdown_text(lineage.teacher)),
    ]
    return [row for row in rows if row[1]]


def _section(title: str, rows: Rows) -> list[str]:
    table = "".join(f"| {name} | {value} |\n" for name, value in rows)
    return [f"## {title}\n\n| | |\n| --- | --- |\n{table}".rstrip()] if rows else []


def _fenced(yaml: str) -> str:
    """A block of code, within more backticks than any line of it has."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", yaml)), default=0))
    return f"{fence}yaml\n{yaml}{fence}"


def environment_token() -> str | None:
    """The hub's token, from HF_TOKEN."""
    return os.environ.get("HF_TOKEN") or None


def upload(folder: Path, repo: str, *, private: bool, secret: str | None) -> str:
    """Uploads the files of `folder` to the hub repository `repo`; returns its address. A new repository is `private`. Raises
    UserError if there is no token, the hub refuses the request, or it cannot be reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    def refused(message: str, fix: str) -> UserError:
        return UserError("push_to_hub", repo, message, fix)

    if not secret:
        raise refused("needs a hub token.", "Set HF_TOKEN to a token with write access.")
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=secret)
    try:
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(repo_id=address.repo_id, folder_path=folder, commit_message="Trained with Lathe")
    except HFValidationError:
        raise refused("is not a valid repository name.", "Write owner/name.") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no status"
        denied = status in (401, 403, 404)
        fix = "Check the name, and that the token has write access." if denied else "Try again later."
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise refused(f"was refused by the hub ({status}): {lines[-1][:300]}", fix) from None
    except Exception as error:  # the client's HTTP library depends on its version
        where = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        raise refused(f"could not be reached at {where} ({type(error).__name__}).", "Try again later.") from None
    return str(address)
