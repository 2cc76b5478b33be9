"""`python -m tools.references.compose` writes the variables of Settings into docker-compose.yml and .env.example.

Every service of Lathe gets every setting from .env, but those of `GIVEN` (docker-compose.yml says what they are) and `OF_ONE`.
"""

import re
from pathlib import Path

from worker.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE, EXAMPLE = ROOT / "docker-compose.yml", ROOT / ".env.example"

GIVEN = {"data_dir", "database_url", "broker_url", "model_folders"}
"""Follow from the other services and from the volumes."""
OF_ONE = {"host", "port", "token", "serve_host", "hub_token", "devices", "address", "vllm_command"}
"""Of the web server or the worker alone: what one of them listens on or has, and the secrets that only one of them needs."""

_BLOCK = re.compile(r"(?<=  # from here on by tools\.references\.compose\n)(?:  .*\n)+")
_EXAMPLES = re.compile(r"(?<=# All other settings, with their defaults\.\n)[\s\S]*")


def render() -> dict[Path, str]:
    """Both files as they should be."""
    names = [name for name in Settings.model_fields if name not in GIVEN | OF_ONE]
    block = "".join(f"  {_variable(name)}: ${{{_variable(name)}:-}}\n" for name in names)
    example = EXAMPLE.read_text(encoding="utf-8")
    by_hand = _EXAMPLES.sub("", example)
    rest = [name for name in names if f"\n#{_variable(name)}=" not in by_hand]
    compose, blocks = _BLOCK.subn(lambda _: block, COMPOSE.read_text(encoding="utf-8"))
    example, lists = _EXAMPLES.subn(lambda _: "".join(map(_example, rest)), example)
    assert blocks == lists == 1
    return {COMPOSE: compose, EXAMPLE: example}


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _example(name: str) -> str:
    field = Settings.model_fields[name]
    default = "" if field.default is None else str(field.default)
    return f"\n# {field.description}\n#{_variable(name)}={default.lower() if isinstance(field.default, bool) else default}\n"


if __name__ == "__main__":
    for path, text in render().items():
        path.write_text(text, encoding="utf-8")
