"""docs/deepspeed.md, written from the keys: `python -m training.deepspeed_reference`."""

import json
from pathlib import Path

from training.deepspeed_check import AUTO
from training.deepspeed_keys import Key, keys, removed, version

TARGET = Path(__file__).resolve().parent.parent / "docs" / "deepspeed.md"

INTRODUCTION = """\
# A DeepSpeed JSON of your own

Written by `python -m training.deepspeed_reference`. Keys, types and defaults are DeepSpeed {version}'s, read off it by
`python -m training.deepspeed_catalogue`.

None is needed: the strategies zero0 to zero3 make one, which the page New run shows. `deepspeed_config` takes yours instead, as
a file's path or as text. It is read as people write it: comments (`//`, `/* */`, `#`), trailing commas and missing ones between
lines do no harm. Unknown, doubled and removed keys, wrong values and choices left open (`[true|false]`) are refused with their
line. What contradicts a setting of the run (batch sizes, precision, stage, offload, learning rate) is named, with the setting
to change.

`"auto"` is filled in from the run's settings where the table says so. Batch sizes, clipping, precision and
`stage3_gather_16bit_weights_on_model_save` are filled in even where the file says nothing of them. `total_num_steps` and
`warmup_num_steps` follow once the rows are counted, or from max_steps at once.
"""


def render() -> str:
    """The whole page as Markdown."""
    sections = sorted({path.rpartition(".")[0] for path in keys()})
    gone = ", ".join(f"`{path}`" for path in sorted(removed()))
    return "\n".join(
        [
            INTRODUCTION.format(version=version()),
            *(_section(name) for name in sections),
            f"Removed from DeepSpeed: {gone}.\n",
        ]
    )


def _section(section: str) -> str:
    rows = [_row(key) for path, key in keys().items() if path.rpartition(".")[0] == section]
    title = f"## `{section}`" if section else "## Outside of any section"
    head = "| key | what it does | takes | default | auto |\n| --- | --- | --- | --- | --- |"
    return "\n".join([title, "", head, *rows, ""])


def _row(key: Key) -> str:
    default = "" if key.kind in ("section", "open") else f"`{json.dumps(key.default)}`"
    sentence = f"Outdated: use `{key.instead}`." if key.instead else key.sentence.replace("|", "\\|")
    return f"| `{key.path.rpartition('.')[2]}` | {sentence} | {key.bounds} | {default} | {'yes' if key.path in AUTO else ''} |"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
