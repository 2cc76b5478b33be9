"""`python -m tools.references.deepspeed` writes docs/deepspeed.md from the keys."""

import json
from pathlib import Path

from training.deepspeed_file.check import AUTO, Key, keys, removed, version

TARGET = Path(__file__).resolve().parents[2] / "docs" / "deepspeed.md"

INTRODUCTION = """\
# Custom DeepSpeed JSON

`python -m tools.references.deepspeed` generates this page. `python -m tools.references.deepspeed_catalogue` extracts keys,
types and defaults from DeepSpeed {version}.

A custom DeepSpeed JSON is optional: the strategies zero0 to zero3 generate one, and the page New run shows it. To use your own,
set `deepspeed_config` to a file path or to the JSON text. Lathe accepts comments (`//`, `/* */`, `#`), trailing commas, and missing
commas between lines. It refuses unknown, duplicate and removed keys, invalid values and unresolved choices (`[true|false]`), with
the line number. If a key contradicts a setting of the run (batch sizes, precision, stage, offload, learning rate), Lathe names the
setting to change.

Lathe replaces `"auto"` by the value from the run's settings, for the keys marked in the last column. It also sets batch sizes,
clipping, precision and `stage3_gather_16bit_weights_on_model_save` if the file does not contain them. It sets `total_num_steps` and
`warmup_num_steps` from max_steps, or once the rows are counted.
"""


def render() -> str:
    """The whole page as Markdown."""
    sections = sorted({path.rpartition(".")[0] for path in keys()})
    removed_keys = ", ".join(f"`{path}`" for path in sorted(removed()))
    return "\n".join(
        [
            INTRODUCTION.format(version=version()),
            *(_section(name) for name in sections),
            f"Removed from DeepSpeed: {removed_keys}.\n",
        ]
    )


def _section(section: str) -> str:
    rows = [_row(key) for path, key in keys().items() if path.rpartition(".")[0] == section]
    title = f"## `{section}`" if section else "## Top-level keys"
    head = "| key | what it does | takes | default | auto |\n| --- | --- | --- | --- | --- |"
    return "\n".join([title, "", head, *rows, ""])


def _row(key: Key) -> str:
    default = "" if key.type in ("section", "open") else f"`{json.dumps(key.default)}`"
    sentence = f"Deprecated: use `{key.instead}`." if key.instead else key.sentence.replace("|", "\\|")
    return f"| `{key.path.rpartition('.')[2]}` | {sentence} | {key.bounds} | {default} | {'yes' if key.path in AUTO else ''} |"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
