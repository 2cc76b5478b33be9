"""`python -m tools.references.environment` writes the table of environment variables in docs/deploy.md from Settings."""

import re
from pathlib import Path

from pydantic.fields import FieldInfo

from worker.engine_settings import EngineSettings
from worker.settings import PREFIX, Settings

TARGET = Path(__file__).resolve().parents[2] / "docs" / "deploy.md"
_ROWS = re.compile(r"(?<=\| variable \| meaning \| default \|\n\| --- \| --- \| --- \|\n)(?:\|.*\n)+")
_LOOPBACK = "`127.0.0.1`, or `::1` without IPv4"
_DEFAULTS = {
    "data_dir": "`data` in a checkout, else `~/.local/share/lathe`",
    "host": _LOOPBACK,
    "serve_host": _LOOPBACK,
}


def render() -> str:
    """The whole page, with the rows of all settings; those of engines are the last."""
    fields = Settings.model_fields
    names = sorted(fields, key=lambda name: name in EngineSettings.model_fields)
    rows = "".join(_row(name, fields[name]) for name in names)
    page, tables = _ROWS.subn(lambda _: rows, TARGET.read_text(encoding="utf-8"))
    assert tables == 1
    return page


def _row(name: str, field: FieldInfo) -> str:
    meaning = (field.description or "").replace("|", r"\|")
    return f"| `{PREFIX}{name.upper()}` | {meaning} | {_DEFAULTS.get(name) or _default(field.default)} |\n"


def _default(value: object) -> str:
    if value is None or value == "":
        return "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
