"""Redacts secrets in texts: hub tokens, keys, credentials in headers and URLs, and this process's own keys of trackers."""

import os
import re
from typing import Any

LONGEST_LINE = 4000  # characters; the whole line is in the run's output.log
LONGEST_READ = 16 * LONGEST_LINE
REDACTED = "[redacted]"
_SECRETS = [
    (re.compile(r"\bhf_[A-Za-z0-9]{8,}"), f"hf_{REDACTED}"),
    (re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)[^\s\"',]+"), rf"\1{REDACTED}"),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/-]{12,}=*"), rf"\1{REDACTED}"),
    (re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*):[^\s/@]+@"), rf"\1:{REDACTED}@"),
    (
        re.compile(
            r"(?i)\b(https?://(?:hooks\.slack\.com/|(?:\w+\.)?discord(?:app)?\.com/api/webhooks/|[^\s/]+/hooks/))[^\s\"']+"
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), REDACTED),
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[A-Za-z0-9_-]{20,})"), REDACTED),
    (
        re.compile(r"(?i)((?:secret|password|passwd|api_?key|access_?key|token)[\"']?\s*[=:]\s*[\"']?)[\w+/=.~-]{16,}"),
        rf"\1{REDACTED}",
    ),
]
_VARIABLES = ("WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN")
_SHORTEST_SECRET = 6  # characters; a shorter value is part of other words
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


def redact(text: str) -> str:
    """The text without secrets (hub tokens, keys, credentials in headers and URLs) and without characters that databases refuse."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    for name in _VARIABLES:
        if len(secret := os.environ.get(name, "")) >= _SHORTEST_SECRET:
            text = text.replace(secret, REDACTED)
    return text.replace("\0", "").encode("utf-8", "replace").decode()


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
