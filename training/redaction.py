"""Texts that are safe to show and store: without secrets (what looks like a token, a key or a credential, and the values of secrets
in the environment), and without characters that control a terminal or reorder what follows."""

import logging
import os
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # all but tab and line feed
LONGEST_LINE = 4000  # characters; the whole line is in the run's output.log
LONGEST_READ = 16 * LONGEST_LINE
REDACTED = "[redacted]"
_DIGIT = re.compile("[0-9]")
_TOKEN_NAME = re.compile(r"[a-z_]+\.(?:[a-z_]+\.)*[a-z_]+_token\.?")  # in code, as in pad_token = tokenizer.eos_token
_SECRETS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    # A token of the hub is long, or has capitals or digits, unlike names in Python code such as hf_quantizer.
    (re.compile(r"\bhf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|[a-z]{20,})"), f"hf_{REDACTED}"),
    (re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)[^\s\"',]+"), rf"\1{REDACTED}"),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/-]{12,}=*"), rf"\1{REDACTED}"),
    (re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]+@"), rf"\1:{REDACTED}@"),
    (
        re.compile(
            r"(?i)\b(https?://(?:hooks\.slack\.com/|(?:\w+\.)?discord(?:app)?\.com/api/webhooks/|[^\s/]+/hooks/))[^\s\"']+"
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), REDACTED),
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,})"), REDACTED),
    # The whole text is consumed, with or without a digit: else the next sk- in it would begin another search to its end.
    (re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"), lambda found: REDACTED if _DIGIT.search(found[0]) else found[0]),
    (
        re.compile(
            r"(?i)((?:secret|password|passwd|api_?key|access_?key|token)[\"']?\s*[=:]\s*[\"']?)([\w+/=.~-]{16,})"
        ),
        lambda found: found[0] if _TOKEN_NAME.fullmatch(found[2]) else f"{found[1]}{REDACTED}",
    ),
]
_SECRET_NAME = re.compile(r"(?i)(?:key|token|secret|passw(?:or)?d|credentials?)$")  # of a variable
_URL_PASSWORD = re.compile(r"://[^\s/:@]*:([^\s/@]+)@")
_SHORTEST_SECRET = 6  # characters; a shorter value is part of other words
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


def printable(text: str) -> str:
    """The text with U+FFFD in place of each control character but tab and line feed."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The text in one line, without control characters."""
    return " ".join(_CONTROLS.sub(" ", text).split())


def markdown_text(text: str) -> str:
    """The text in one line of Markdown, such as a cell of a table: without markup and HTML."""
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", one_line(text))


class ChangedStream:
    """A text stream that writes `change(text)` in place of each text. `unchanged` is the stream behind it."""

    def __init__(self, stream: Any, change: Callable[[str], str]) -> None:
        self.unchanged, self._change = stream, change

    def write(self, text: str) -> int:
        self.unchanged.write(self._change(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unchanged, name)


def change_output(change: Callable[[str], str]) -> None:
    """Changes what this process prints from now on. Call it before libraries keep the streams."""
    sys.stdout, sys.stderr = ChangedStream(sys.stdout, change), ChangedStream(sys.stderr, change)


def redact(text: str) -> str:
    """The text without secrets (hub tokens, keys, credentials in headers and URLs) and without characters that databases refuse."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    for secret in _own_secrets():
        text = text.replace(secret, REDACTED)
    return storable(text)


def storable(text: str) -> str:
    """The text without characters that databases refuse."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _own_secrets() -> list[str]:
    """The secrets in this process's environment, the longest first: one may be a part of another."""
    values = (os.environ.get(name, "").strip() for name in _secret_names(tuple(os.environ)))
    secrets = {part for value in values for part in _parts(value) if len(part) >= _SHORTEST_SECRET}
    return sorted(secrets, key=len, reverse=True)


@lru_cache(maxsize=1)
def _secret_names(names: tuple[str, ...]) -> list[str]:
    """The variables that hold a secret, or an address that may contain one. Cached, since logs have many lines."""
    return [name for name in names if _SECRET_NAME.search(name) or "://" in os.environ.get(name, "")]


def _parts(value: str) -> list[str]:
    """The secrets in a variable's value; none for the path of a file with a key."""
    if "://" in value:
        return [form for password in _URL_PASSWORD.findall(value) for form in (password, unquote(password))]
    return [] if value.startswith("/") else [value]


def redact_all(value: Any) -> Any:
    """`redact` for every text in a JSON value."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redact_all(item) for key, item in value.items()}
    return [redact_all(item) for item in value] if isinstance(value, list) else value


def clean(line: str) -> str:
    """A line for display: only the last state of a progress bar, no color codes, no secrets, limited length."""
    last = line.rstrip("\r\n").rsplit("\r", 1)[-1]
    # Redact before truncating: half a token is not recognized.
    shown = redact(ESCAPES.sub("", last[:LONGEST_READ]))
    return shown if len(shown) <= LONGEST_LINE else f"{shown[:LONGEST_LINE]} ... ({len(last)} characters)"


class Formatter(logging.Formatter):
    """Formats log records without secrets and without characters that control a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return printable(redact(super().format(record)))


def start_logging() -> None:
    """Lets this process log to standard error, without secrets."""
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def redact_output() -> None:
    """Redacts what this process prints from now on. Call it before libraries keep the streams."""
    change_output(redact)
