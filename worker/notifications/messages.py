"""What a notification says, as JSON, as text for chat programs, and as an e-mail. Pure, except for the settings of links."""

import json
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import quote

from training.addresses import authority, is_loopback
from training.redaction import one_line, printable
from training.run_folder.evaluated import evaluated
from training.units import decimal
from worker.settings import Settings
from worker.store.tables import Event, WebhookFormat
from worker.supervision.run_diagnosis import DIVERGED, failure_cause

LONGEST_TEXT = 1900  # characters; Discord refuses more than 2,000


@dataclass(frozen=True)
class _Form:
    """How an event is told: what the run did, in words; ntfy's priority (1 to 5) and tag."""

    words: str = ""
    priority: str = "3"
    tag: str = ""


_FORMS = {
    Event.FINISHED: _Form("finished", tag="white_check_mark"),
    Event.FAILED: _Form("failed", priority="4", tag="x"),
    Event.STOPPED: _Form("was stopped", tag="black_square_for_stop"),
    Event.DIVERGED: _Form("has a loss that is not finite", priority="4", tag="warning"),
    Event.TEST: _Form(),
}


@dataclass(frozen=True)
class Message:
    """What is said about an event. `url` is empty if the installation has no address for links."""

    event: Event
    title: str
    lines: tuple[str, ...]
    url: str
    document: dict[str, Any]

    @property
    def text(self) -> str:
        """All of it as plain text, with the link in the last line."""
        body = "\n".join([self.title, *self.lines])
        link = f"\n{self.url}" if self.url else ""
        return body[: LONGEST_TEXT - len(link)] + link

    @property
    def html(self) -> str:
        """All of it as the HTML of an e-mail."""
        lines = "".join(f"<p>{escape(line)}</p>" for line in self.lines)
        link = f'<p><a href="{escape(self.url)}">Open in Lathe</a></p>' if self.url else ""
        return f"<h3>{escape(self.title)}</h3>{lines}{link}"


def of_run(event: Event, run: dict[str, Any], report: dict[str, Any] | None, settings: Settings) -> Message:
    """The message about an event of a run.

    Args:
        run: The run when it happened, as worker/store/outbox.py stores it.
        report: The out-of-memory report of the attempt, if there is one.
    """
    cause = _cause(event, run, report)
    lines = [line for line in (cause.get("cause"), cause.get("message")) if line]
    lines += [f"First fix: {cause['fix']}"] if cause.get("fix") else []
    lines += [_results(run)]
    base = page_address(settings)
    url = f"{base}/run?id={quote(str(run.get('id')))}" if base else ""
    title = one_line(f"{run.get('name') or 'A run'} {_FORMS[event].words}")
    about = {
        name: run.get(name)
        for name in ("id", "name", "owner", "status", "step", "total_steps", "final_loss", "best_loss")
    }
    document = {"event": event.value, "run": about | {"seconds": _seconds(run)}, **_causes(cause), "url": url}
    return Message(event, title, tuple(map(printable, lines)), url, document)


def of_test(settings: Settings) -> Message:
    """A message that tests a channel."""
    url = page_address(settings)
    lines = ("This is a test message. You will get one like it when an event of your choice happens to a run.",)
    document = {"event": Event.TEST.value, "run": None, **_causes({}), "url": url}
    return Message(Event.TEST, "Lathe can reach you here", lines, url, document)


def body(message: Message, form: WebhookFormat, key: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of a webhook's request. `key` is the same for each try to send the message."""
    headers = {"Content-Type": "application/json", "User-Agent": "Lathe", "Idempotency-Key": key}
    match form:
        case WebhookFormat.SLACK:
            value: dict[str, Any] = {"text": escape(message.text, quote=False)}  # else <!channel> would call everybody
        case WebhookFormat.DISCORD:
            value = {"content": message.text, "allowed_mentions": {"parse": []}}
        case WebhookFormat.NTFY:
            return headers | _ntfy_headers(message), "\n".join(message.lines).encode()
        case _:
            value = message.document | {
                "id": key,
                "title": message.title,
                "text": message.text,
                "content": message.text,
            }
    return headers, json.dumps(value, ensure_ascii=False).encode()


def page_address(settings: Settings) -> str:
    """The address of the pages for links: LATHE_PUBLIC_URL, or that of a server which only this machine can reach; else empty."""
    if settings.public_url:
        return settings.public_url
    reachable = is_loopback(settings.host) and settings.port
    return f"http://{authority(settings.host, settings.port)}" if reachable else ""


def _ntfy_headers(message: Message) -> dict[str, str]:
    """ntfy takes what is not text from headers, as ASCII or RFC 2047."""
    title = message.title if message.title.isascii() else _encoded(message.title)
    form = _FORMS[message.event]
    found = {"Content-Type": "text/plain; charset=utf-8", "Title": title, "Priority": form.priority}
    found |= {"Tags": form.tag} if form.tag else {}
    return found | ({"Click": message.url} if message.url else {})


def _encoded(text: str) -> str:
    from email.header import Header

    return Header(text, "utf-8", maxlinelen=10_000).encode()


def _cause(event: Event, run: dict[str, Any], report: dict[str, Any] | None) -> dict[str, str]:
    if event is Event.DIVERGED:
        return dict(zip(("cause", "message", "fix"), DIVERGED, strict=True))
    if event is not Event.FAILED or not run.get("error"):
        return {}
    found = failure_cause(run["error"], report, proposed=bool(run["error"].get("step_down")))
    return {"cause": found.title, "message": found.message, "fix": found.fix}


def _causes(cause: dict[str, str]) -> dict[str, str | None]:
    return {name: cause.get(name) or None for name in ("cause", "message", "fix")}


def _seconds(run: dict[str, Any]) -> float | None:
    """The seconds of the run's attempts; None if it did not start, or goes on."""
    if run.get("started_at") is None or run.get("finished_at") is None:
        return None
    return round(float(run.get("worked_seconds") or run["finished_at"] - run["started_at"]), 1)


def _results(run: dict[str, Any]) -> str:
    """Steps, losses and duration in one line."""
    total = f" of {run['total_steps']:,}" if run.get("total_steps") else ""
    measure, final = evaluated(run.get("task"), run.get("final_loss"))
    parts = [f"Step {run.get('step') or 0:,}{total}", f"{measure} {decimal(final)}"]
    measure, value = evaluated(run.get("task"), run.get("best_loss"))
    parts += [f"best evaluation {measure} {decimal(value)}"] if value is not None else []
    seconds = _seconds(run)
    parts += [f"duration {_duration(seconds)}"] if seconds is not None else []
    return ", ".join([*parts, f"owner {run.get('owner')}, run {run.get('id')}"])


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
