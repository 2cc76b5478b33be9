"""The server that commands work on: LATHE_SERVER with LATHE_TOKEN. Commands without one use the local database."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from training.errors import Problem, UserError

if TYPE_CHECKING:
    import httpx

VARIABLE = "LATHE_SERVER"
TOKEN = "LATHE_TOKEN"  # noqa: S105 - the name of a variable
INSECURE = "LATHE_INSECURE"
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_TRIES = 3

_REMOTE = (
    "runs", "show", "compare", "logs", "run", "sweep", "stop", "resume", "edit", "delete", "share", "queue", "dataset", "forecast",
    "render", "diagnose", "export", "archive", "restore", "system", "machines", "notify", "evaluate",
    "evaluations",
)  # fmt: skip
_ANYWHERE = ("import", "targets", "dataset check")
"""Commands that need neither a database nor a server."""


class ServerError(UserError):
    """The server refused a request, or did not answer as Lathe does."""


class Unreachable(ServerError):  # noqa: N818
    """The server did not answer."""


@dataclass(frozen=True)
class Server:
    """A Lathe server: its address without a final slash, and the token for it."""

    address: str
    token: str = ""

    def get(self, path: str, **params: Any) -> Any:
        """The JSON answer to a GET request; parameters that are None are left out."""
        return self.send("GET", path, params=params)

    def text(self, path: str, method: str = "GET", **request: Any) -> str:
        """The answer to a request as text; errors as `send`."""
        with self._answer(method, path, **request) as answer:
            return str(answer.text)

    def send(self, method: str, path: str, *, seconds: float = _READ_SECONDS, **request: Any) -> Any:
        """The JSON answer to a request, None if it is empty. `request` is as for httpx.

        Raises:
            Unreachable: there was no answer within `seconds`.
            ServerError: the server refused the request.
        """
        with self._answer(method, path, seconds=seconds, **request) as answer:
            return _json(self, answer) if answer.content else None

    def submit(self, path: str, values: Any, *, seconds: float = _READ_SECONDS) -> dict[str, Any]:
        """Sends a run or a sweep, again if no answer came; its key keeps it from being queued twice. Errors as `send`."""
        key = {"Idempotency-Key": secrets.token_urlsafe(16)}
        for _ in range(_TRIES - 1):
            with suppress(Unreachable):
                return dict(self.send("POST", path, json=values, headers=key, seconds=seconds))
        return dict(self.send("POST", path, json=values, headers=key, seconds=seconds))

    def download(self, path: str, target: Path) -> None:
        """Writes the answer to a GET request into a file, completely or not at all."""
        with whole(target) as part, self._answer("GET", path, stream=True) as answer, part.open("wb") as file:
            for chunk in answer.iter_bytes():
                file.write(chunk)

    @contextmanager
    def _answer(
        self, method: str, path: str, *, seconds: float = _READ_SECONDS, stream: bool = False, **request: Any
    ) -> Iterator["httpx.Response"]:
        import httpx

        headers = request.pop("headers", {}) | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        params = {name: value for name, value in request.pop("params", {}).items() if value is not None}
        timeout = httpx.Timeout(_CONNECT_SECONDS, read=seconds, write=seconds)
        try:
            with (
                httpx.Client(timeout=timeout) as client,
                client.stream(method, f"{self.address}{path}", params=params, headers=headers, **request) as answer,
            ):
                if not stream or not answer.is_success:
                    answer.read()
                _check(self, path, answer)
                yield answer
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            fix = "Check the address, and that the server is running."
            raise Unreachable(VARIABLE, self.address, f"did not answer: {reason}.", fix) from None


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A path beside `target`, which replaces it at the end; a failure, for example a full disk, leaves nothing there."""
    part = target.with_name(f".{target.name}.part")
    try:
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def chosen() -> Server | None:
    """The server in LATHE_SERVER; None for the local database.

    Raises:
        ServerError: the address is invalid, or the token would be sent unencrypted over a network.
    """
    from app.access.peers import is_loopback

    given = os.environ.get(VARIABLE, "").strip().rstrip("/")
    if not given:
        return None
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise ServerError(VARIABLE, given, "is not the address of a server.", "Give https://HOST or https://HOST:PORT.")
    token = os.environ.get(TOKEN, "").strip()
    if token and parts.scheme == "http" and not is_loopback(parts.hostname) and os.environ.get(INSECURE) != "1":
        fix = f"Use https, or set {INSECURE}=1 if the network is trusted."
        raise ServerError(VARIABLE, given, f"would receive {TOKEN} unencrypted.", fix)
    return Server(given, token)


def check_command(words: list[str]) -> None:
    """Checks that a command (its words after `lathe`) can work on the server, if one is chosen.

    Raises:
        ServerError: it works on this machine only.
    """
    name = " ".join(words)
    if not os.environ.get(VARIABLE) or name in _ANYWHERE or not words or words[0] in _REMOTE:
        return
    message = f"`lathe {name}` works on the machine of the installation only."
    raise ServerError(VARIABLE, os.environ[VARIABLE], message, f"Run it there, or unset {VARIABLE}.")


def run_path(run_id: str, rest: str = "") -> str:
    """The address of a run on a server."""
    return f"/api/runs/{quote(run_id, safe='')}{rest}"


def _check(server: Server, path: str, answer: "httpx.Response") -> None:
    """Raises ServerError, with the server's problems, for every answer but success."""
    if answer.is_success:
        return
    if answer.status_code == 401:
        message = "is not accepted by the server." if server.token else "is not set, and the server needs a token."
        fix = "Set it to a token of that server: `lathe user add NAME` or `lathe token` prints one there."
        raise ServerError(TOKEN, None, message, fix)
    if answer.is_redirect:
        place = answer.headers.get("location", "")
        raise ServerError(VARIABLE, server.address, f"redirects to {place}.", "Set it to the server's final address.")
    problems = _problems(_json(server, answer))
    if answer.status_code == 405 or problems[0].field == "path":
        message = f"has no {path}: it runs another version of Lathe."
        raise ServerError(VARIABLE, server.address, message, "Install the same version here and there.")
    first, *others = problems
    raise ServerError(first.field, first.value, first.message, first.fix, *others)


def _problems(answer: Any) -> list[Problem]:
    listed = answer.get("problems") or [answer["error"]]
    return [Problem(one["field"], one["value"], one["message"], one["fix"], one.get("changes") or {}) for one in listed]


def _json(server: Server, answer: "httpx.Response") -> Any:
    try:
        found = answer.json()
        if answer.is_success or "error" in found:
            return found
    except (ValueError, TypeError):
        pass
    message = f"answered with status {answer.status_code} and not as Lathe does."
    raise ServerError(VARIABLE, server.address, message, "Check the address, and the proxy before the server.")
