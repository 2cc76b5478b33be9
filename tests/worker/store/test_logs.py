"""Log lines, and the secrets that must not be in them."""

import pytest

from worker.redaction import clean, redact
from worker.store import claims, logs, runs
from worker.store import database as db


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("using hf_AbCdEfGhIjKlMnOp now", "using hf_[redacted] now"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer [redacted]"),
        ("{'authorization': 'Bearer abcdef'}", "{'authorization': 'Bearer [redacted]'}"),
        ("sent bearer eyJhbGciOiJIUzI1NiJ9.e30.abc", "sent bearer [redacted]"),
        (
            "at postgresql+psycopg://lathe:s3cret@db:5432/lathe",
            "at postgresql+psycopg://lathe:[redacted]@db:5432/lathe",
        ),
        ("at redis://:s3cret@cache:6379/0", "at redis://:[redacted]@cache:6379/0"),
        ("key AKIAIOSFODNN7EXAMPLE used", "key [redacted] used"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws_secret_access_key = [redacted]"),
        ("HF_TOKEN=0123456789abcdef0123", "HF_TOKEN=[redacted]"),
        ('"api_key": "0123456789abcdef"', '"api_key": "[redacted]"'),
        ("ghp_0123456789abcdefghij0123456789abcdef", "[redacted]"),
    ],
)
def test_secrets_are_redacted(text, expected):
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "step 5: loss 1.25, 1,234 tokens per second",
        "see https://example.org:8080/path?x=1@2",
        "pad_token: <|pad|>, eos_token_id=2",
        "hf_hub and the bearer of news",
        "/data/runs/abc/checkpoints/checkpoint-50",
    ],
)
def test_text_without_secrets_is_unchanged(text):
    assert redact(text) == text


def test_the_keys_of_trackers_in_the_environment_are_redacted(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "plain-words-7")
    assert redact("login with plain-words-7 failed") == "login with [redacted] failed"


def test_progress_bars_keep_their_last_state_and_colors_are_removed():
    assert clean("10%|#\r50%|###\r\x1b[31m100%|#####\x1b[0m\r\n") == "100%|#####"


def test_a_long_line_is_truncated_and_shows_its_length():
    assert clean("x" * 5000) == "x" * 4000 + " ... (5000 characters)"


def test_a_secret_at_the_truncation_is_not_shown_partially():
    assert "abcd" not in clean("x" * 3995 + " hf_abcdefghijklmnop")


@pytest.fixture
def run(new_run):
    queued = new_run()
    with db.write() as session:
        claims.claim(session=session, run_id=queued.id, owner="node1:1:1", devices=["node1/cpu"], lease_seconds=60)
    return queued


def append(run, lines, new_offset, attempt=1):
    with db.write() as session:
        return logs.append(session=session, run_id=run.id, attempt=attempt, lines=lines, new_offset=new_offset)


def tail(run, **options):
    with db.read() as session:
        return logs.tail(session=session, run_id=run.id, **options)


def test_lines_are_stored_in_order_with_the_offset(run):
    assert append(run, ["first", "hf_abcdefghijkl", "nul\0 and half a \ud800 pair"], 40)
    assert [line.text for line in tail(run)] == ["first", "hf_[redacted]", "nul and half a ? pair"]
    with db.read() as session:
        assert runs.get(session=session, run_id=run.id).log_offset == 40


def test_lines_of_an_older_attempt_are_refused(run):
    assert not append(run, ["late"], 40, attempt=0)
    assert tail(run) == []


def test_storing_lines_twice_keeps_one_copy(run):
    for _ in range(2):
        assert append(run, ["once"], 5)
    assert [line.text for line in tail(run)] == ["once"]


def test_a_reader_gets_the_last_lines_and_then_new_ones(run):
    append(run, [str(number) for number in range(10)], 20)
    last = tail(run, limit=3)
    assert [line.text for line in last] == ["7", "8", "9"]
    append(run, ["new"], 24)
    assert [line.text for line in tail(run, after_id=last[-1].id)] == ["new"]
