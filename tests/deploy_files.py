"""docker-compose.yml and the Dockerfile, read without a Docker engine."""

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

import yaml
from paths import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
RESET = object()
"""What Compose's tag `!reset` stands for: the entry of the earlier file is left out."""


class ComposeLoader(yaml.SafeLoader):
    """Reads YAML with Compose's own tags."""


ComposeLoader.add_constructor("!reset", lambda *_: RESET)
CPU_COMPOSE: dict[str, Any] = yaml.load(
    (ROOT / "docker-compose.cpu.yml").read_text(encoding="utf-8"), Loader=ComposeLoader
)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("web", "worker", "migrate")
_VARIABLE = re.compile(r"\$\{(\w+)(?::([?-])([^}]*))?\}")


@dataclass
class Stage:
    """A stage of the Dockerfile: its instructions in order, as (name, rest of the line)."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]

    def last(self, name: str) -> str:
        return self.all(name)[-1]

    @property
    def health_check(self) -> list[str]:
        """The words of HEALTHCHECK's command; those of a shell line may hold $HOSTNAME."""
        return self._checked()[1]

    @property
    def seconds_to_end_of_check(self) -> tuple[float, float]:
        """When a health check ends itself, and when Docker stops waiting for it."""
        given = re.search(r"--timeout=(\d+)s", self.last("HEALTHCHECK"))
        assert given
        return self._checked()[0], float(given[1])

    def _checked(self) -> tuple[float, list[str]]:
        """The command of HEALTHCHECK: the seconds after which it is killed, and its words."""
        command = self.last("HEALTHCHECK").split(" CMD ", 1)[1]
        words = list(json.loads(command)) if command.startswith("[") else shlex.split(command)
        assert words[:2] == ["timeout", "--signal=KILL"], words
        return float(words[2]), words[3:]

    @property
    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for rest in self.all("ENV") for pair in shlex.split(rest))


def stages() -> dict[str, Stage]:
    """The Dockerfile's stages by name."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found: dict[str, Stage] = {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            found[stage] = Stage(stage, base)
        elif name and found:  # what is above the first stage belongs to none
            list(found.values())[-1].instructions.append((name, rest.strip()))
    return found


def commands(service: str) -> list[list[str]]:
    """The commands of a service: its command, its image's command and the health check."""
    definition = SERVICES[service]
    stage = stages()[definition["build"]["target"]] if "build" in definition else None
    images = [json.loads(stage.last("CMD")), stage.health_check] if stage else []
    return [definition["command"], *images]


def variables(value: Any) -> list[tuple[str, str, str]]:
    """Every ${NAME}, ${NAME:-default} and ${NAME:?message} in a part of the file, as (name, operator, text)."""
    return [match.groups(default="") for match in _VARIABLE.finditer(json.dumps(value))]  # type: ignore[misc]


def environment(service: str, values: dict[str, str]) -> dict[str, str]:
    """The environment of a service if .env contains `values`."""

    def filled(match: re.Match[str]) -> str:
        name, operator, text = match.groups(default="")
        return values.get(name) or (text if operator == "-" else "")

    given = SERVICES[service].get("environment", {})
    return {name: _VARIABLE.sub(filled, str(value)) for name, value in given.items()}
