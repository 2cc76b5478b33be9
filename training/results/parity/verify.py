"""Verifies the forms of a finished run's result: `python -m training.results.parity.verify RUN_FOLDER [FORM ...]`.

It prints one JSON line per form as it is done, and writes all of them to PARITY_FILE in the run's folder.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.loading import load_tokenizer
from training.results.gguf.quantize import write
from training.results.merging import last_summary, merge
from training.results.parity.comparison import compare, document, perplexity
from training.results.parity.forms import Form, gguf_form, transformers_form
from training.results.parity.reference import Reference
from training.results.parity.saved_result import answer_by_saved_result
from training.results.parity.served import served_form
from training.run_folder.gguf_types import GgufType
from training.run_folder.paths import CONFIG_FILE, MERGED_FOLDER, PARITY_FILE, result_dir

Opened = Callable[[], AbstractContextManager[Form]]


def verify(config: RunConfig, run_dir: Path, reference: Reference, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Compares the named forms with the reference; one document each, as they are done.

    A form that cannot be checked here has an `error` with message and fix instead of figures.
    """
    tokenizer = load_tokenizer(config)
    forms = openers(config, run_dir, reference)
    for name in names:
        if name not in forms:
            continue
        try:
            with forms[name]() as form:
                rows = compare(reference, form)
            yield document(name, rows, tokenizer.decode)
        except (UserError, OSError, ValueError, RuntimeError) as error:
            fix = getattr(error, "fix", "")
            yield {"form": name, "error": {"message": str(error), "fix": fix}}


def openers(config: RunConfig, run_dir: Path, reference: Reference) -> dict[str, Opened]:
    """How to load each form of the result; what must be made for it is made then."""
    adapts = config.method.adapts
    result = result_dir(run_dir, adapts=adapts)
    whole = run_dir / MERGED_FOLDER if adapts else result

    def merged() -> Path:
        if adapts and not whole.is_dir():
            merge(config, run_dir, load_tokenizer(config), last_summary(run_dir).get("classes", ()))
        return whole

    def gguf(kind: GgufType) -> Path:
        file = run_dir / kind.file
        if not file.is_file():
            write(merged(), file, kind)
        return file

    longest = max((len(one.prompt_ids) + len(one.expected) for one in reference.prompts), default=0)
    found: dict[str, Opened] = {
        form_name(kind): lambda kind=kind: gguf_form(gguf(kind), longest + reference.max_new_tokens)  # type: ignore[misc]
        for kind in GgufType
    }
    found["served"] = lambda: served_form(config, result, reference.template_arguments)
    if not adapts:
        return {"model": lambda: transformers_form(config, result, on_base=False)} | found
    return {
        "adapter": lambda: transformers_form(config, result, on_base=True),
        "merged": lambda: transformers_form(config, merged(), on_base=False),
    } | found


def form_name(kind: GgufType) -> str:
    """The name of a GGUF file as a form."""
    return "gguf" if kind is GgufType.TRAINED else f"gguf-{kind.value}"


def existing(config: RunConfig, run_dir: Path) -> list[str]:
    """All forms of the result: the adapter or model, merged, GGUF, the quantized GGUF files that were made, and served."""
    made = [form_name(kind) for kind in GgufType if kind is not GgufType.TRAINED and (run_dir / kind.file).is_file()]
    return [*(("adapter", "merged") if config.method.adapts else ("model",)), "gguf", *made, "served"]


def verdict(reference: Reference, forms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document of a verification."""
    checked = [form for form in forms if "error" not in form]
    exact = [form for form in checked if not form["form"].startswith("gguf-")]  # quantized weights are lossy by intent
    equal = bool(checked) and all(form["prompt_ids_equal"] for form in checked)
    return {
        "reference": reference.source,
        "rows": len(reference.prompts),
        "template_arguments": reference.template_arguments,
        "equal": equal and all(form["answers_equal"] for form in exact),
        "perplexity": perplexity([prompt.loss for prompt in reference.prompts]),
        "exact_match": sum(prompt.answer == prompt.expected for prompt in reference.prompts),
        "forms": {form["form"]: {name: value for name, value in form.items() if name != "form"} for form in forms},
    }


def main(run_dir: Path, names: Sequence[str]) -> int:
    """Verifies the result of a finished run. Returns the exit status: 1 if it cannot be verified at all."""
    config = RunConfig.model_validate_json((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    reference = Reference.read(run_dir)
    if reference is None or not reference.prompts:
        print("The run has no prompts to compare: it answers none, or was trained by an older Lathe.", file=sys.stderr)
        return 1
    try:
        if reference.logits is None:
            answer_by_saved_result(config, run_dir, reference)
    except (UserError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    done = []
    for form in verify(config, run_dir, reference, names or existing(config, run_dir)):
        done.append(form)
        print(json.dumps(form), flush=True)
    (run_dir / PARITY_FILE).write_text(json.dumps(verdict(reference, done)) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
