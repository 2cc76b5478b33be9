"""Verifies the forms of a finished run's result: `python -m training.results.parity.verify RUN_FOLDER [FORM ...]`.

It prints one JSON line per form as it is done, and writes all of them to PARITY_FILE in the run's folder.
"""

import gc
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from training.config.choices import Quantization
from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.loading import load_tokenizer
from training.parts import is_here, named
from training.results.merging import merge
from training.results.parity.comparison import Row, compare, document, exact_match, perplexity, tolerance
from training.results.parity.forms import ResultForm, adapter_form, model_form, served_form
from training.results.parity.reference import Reference
from training.run_folder.derived import GGUF_TYPES, GgufType
from training.run_folder.model_card import write_parity
from training.run_folder.paths import CONFIG_FILE, MERGED_FOLDER, PARITY_FILE, result_dir

Opened = Callable[[], AbstractContextManager[ResultForm]]


def verify(config: RunConfig, run_dir: Path, reference: Reference, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Compares the named forms with the reference; one document each, as they are done.

    A form that cannot be checked here has an `error` with message and fix instead of figures.
    """
    tokenizer = load_tokenizer(config)
    forms = openers(config, run_dir, reference)
    for name in names:
        try:
            if name not in forms:
                raise UserError("FORM", name, "is not a form of this result.", f"Choose from {', '.join(forms)}.")
            rows = _rows(forms[name], reference)
            yield document(name, rows, reference, tokenizer.decode, lossy=is_lossy(name, config))
        except UserError as error:
            yield {"form": name, "error": {"message": error.problem.sentence, "fix": error.fix}}
        except (OSError, ValueError, RuntimeError) as error:
            yield {"form": name, "error": {"message": str(error), "fix": ""}}
        gc.collect()  # only one form is in memory at a time


def _rows(opened: Opened, reference: Reference) -> list[Row]:
    with opened() as form:
        return compare(reference, form)


def openers(config: RunConfig, run_dir: Path, reference: Reference) -> dict[str, Opened]:
    """How to load each form of the result; what must be made for it is made then."""
    adapts = config.method.adapts
    result = result_dir(run_dir, adapts=adapts)
    whole = run_dir / MERGED_FOLDER if adapts else result

    def merged() -> Path:
        if adapts and not whole.is_dir():
            merge(config, run_dir, load_tokenizer(config), reference.classes)
        return whole

    longest = max((len(one.prompt_ids) + len(one.expected) for one in reference.prompts), default=0)

    def gguf(kind: GgufType) -> AbstractContextManager[ResultForm]:
        file = run_dir / kind.file
        if not file.is_file():
            named("training.results.gguf.convert:write")(merged(), file, kind)
        opened: AbstractContextManager[ResultForm] = named("training.results.gguf.form:gguf_form")(
            file, longest + reference.max_new_tokens
        )
        return opened

    found: dict[str, Opened] = {}
    if config.task.traits.generates:
        found |= {kind.form: partial(gguf, kind) for kind in GGUF_TYPES}
    if config.task.traits.generates and is_here("training.serving"):
        found["served"] = lambda: served_form(config, result, reference.template_arguments)
    if not adapts:
        return {"model": lambda: model_form(result, config.task)} | found
    adapted = partial(adapter_form, config, result, classes=reference.classes)
    found |= {f"adapter-{bits.value}": partial(adapted, bits) for bits in Quantization if bits is not Quantization.NONE}
    found |= {"adapter": partial(adapted, config.quantized), "merged": lambda: model_form(merged(), config.task)}
    return found


def is_lossy(name: str, config: RunConfig) -> bool:
    """True if a form rounds the weights otherwise than training did: its answers may differ, and its prompts may not."""
    if name.startswith("adapter-"):
        return name != f"adapter-{config.quantized.value}"
    trained_as_saved = config.quantized is Quantization.NONE or name in ("adapter", "served")
    return name.startswith("gguf-") or not trained_as_saved


def existing(config: RunConfig, run_dir: Path) -> list[str]:
    """All forms of the result: the adapter or model, merged, and of a model that generates also GGUF, the quantized GGUF files that
    were made, and served."""
    whole = ["adapter", "merged"] if config.method.adapts else ["model"]
    if not config.task.traits.generates:
        return whole
    made = [kind.form for kind in GGUF_TYPES if kind is GgufType.TRAINED or (run_dir / kind.file).is_file()]
    return [*whole, *made, *(["served"] if is_here("training.serving") else [])]


def verdict(reference: Reference, forms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document of a verification."""
    checked = [form for form in forms if "error" not in form]
    return {
        "rows": len(reference.prompts),
        "template_arguments": reference.template_arguments,
        "equal": bool(checked) and all(form["equal"] for form in checked),
        "tolerance": tolerance(reference),
        "perplexity": perplexity([prompt.loss for prompt in reference.prompts]),
        "exact_match": exact_match(reference),
        "forms": {form["form"]: {name: value for name, value in form.items() if name != "form"} for form in forms},
    }


def verified(config: RunConfig, run_dir: Path, reference: Reference) -> dict[str, Any]:
    """Compares the forms that exist at the end of training, and writes the verdict to PARITY_FILE."""
    names = ["adapter" if config.method.adapts else "model"]
    if (run_dir / MERGED_FOLDER).is_dir():
        names.append("merged")
    written = verdict(reference, list(verify(config, run_dir, reference, names)))
    (run_dir / PARITY_FILE).write_text(json.dumps(written) + "\n", encoding="utf-8")
    return written


def main(run_dir: Path, names: Sequence[str]) -> int:
    """Verifies the result of a finished run. Returns the exit status: 1 if it cannot be verified at all."""
    config = RunConfig.model_validate_json((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    reference = Reference.read(run_dir)
    if reference is None or not reference.prompts:
        print("The run has no prompts to compare: it answers none, or was trained by an older Lathe.", file=sys.stderr)
        return 1
    done = []
    for form in verify(config, run_dir, reference, names or existing(config, run_dir)):
        done.append(form)
        print(json.dumps(form), flush=True)
    written = verdict(reference, done)
    (run_dir / PARITY_FILE).write_text(json.dumps(written) + "\n", encoding="utf-8")
    for folder in (result_dir(run_dir, adapts=config.method.adapts), run_dir / MERGED_FOLDER):
        write_parity(folder, written)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
