"""Secrets that must not be in logs, records and messages."""

import logging
import time
from pathlib import Path

import pytest
from tiny import make_model
from trainer_process import start

from training.redaction import ESCAPES, clean, redact, start_logging


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
        ("Incorrect API key provided: sk-lathe123.", "Incorrect API key provided: [redacted]."),
        ("a sk-learn and sk-proj-of_team-7x", "a sk-learn and [redacted]"),
        ("x://a:b@c and git+ssh://me:s3cret@host/x", "x://a:[redacted]@c and git+ssh://me:[redacted]@host/x"),
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
        "tokenizer.pad_token = tokenizer.eos_token, or token=self.processing_class.bos_token.",
        "hf_hub and the bearer of news",
        "hf_quantizer.preprocess_model(model=model) with hf_transformers",
        "/data/runs/abc/checkpoints/checkpoint-50",
        "an error of sk-learn-estimators",
    ],
)
def test_text_without_secrets_is_unchanged(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_API_KEY", "plain-words-7"),
        ("AWS_SECRET_ACCESS_KEY", "plain-words-7"),
        ("LATHE_JUDGE_KEY", "plain-words-7"),
        ("SMTP_PASSWD", "plain-words-7"),
        ("LATHE_SMTP_URL", "smtps://me:plain-words-7@mail.example.org:465"),
        ("PROXY", "http://me:plain%2Dwords-7@proxy:3128"),
    ],
)
def test_the_values_of_secrets_in_the_environment_are_redacted(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert redact("login with plain-words-7 failed") == "login with [redacted] failed"


def test_a_secret_that_is_a_part_of_another_leaves_no_rest(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "plain-words")
    monkeypatch.setenv("B_TOKEN", "plain-words-and-more")
    assert redact("plain-words-and-more") == "[redacted]"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false-alarm"),
        ("SHORT_KEY", "step"),
        ("OLDPWD", "/data/runs"),
        ("SSL_KEY", "/etc/key.pem"),
    ],
)
def test_other_variables_are_no_secrets(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert redact(f"the {value} at 5") == f"the {value} at 5"


def test_progress_bars_keep_their_last_state_and_colors_are_removed():
    assert clean("10%|#\r50%|###\r\x1b[31m100%|#####\x1b[0m\r\n") == "100%|#####"


def test_a_long_line_is_truncated_and_shows_its_length():
    assert clean("x" * 5000) == "x" * 4000 + " ... (5000 characters)"


@pytest.mark.parametrize(
    "unit",
    [
        "a.", "a-", "sk-a-", "hf_a", "a://", "a://b:", "token=", "token:", "bearer ", "authorization: ", "https://a",
        "\x1b[0;", "\x1b]",
    ],
)  # fmt: skip
def test_a_long_line_is_redacted_in_linear_time(unit):
    began = time.process_time()
    redact(ESCAPES.sub("", unit * (200_000 // len(unit))))
    assert time.process_time() - began < 2  # milliseconds; in quadratic time a minute


def test_a_secret_at_the_truncation_is_not_shown_partially():
    assert "abcd" not in clean("x" * 3995 + " hf_Abcdefghijklmnop")


@pytest.mark.train
def test_a_secret_in_an_error_does_not_reach_the_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("EXAMPLE_API_KEY", "plain-words-7")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"plain-words-7": "some"}\n')
    run = start(tmp_path / "run", make_model(tmp_path / "model"), rows)
    assert run.finish()
    assert "[redacted]" in run.failure.message and "[redacted]" in run.log()
    config = tmp_path / "run" / "config.json"  # what the user set
    written = [file for file in Path(tmp_path / "run").rglob("*") if file.is_file() and file != config]
    assert {"events.jsonl", "output.log"} <= {file.name for file in written}
    assert not [file for file in written if b"plain-words-7" in file.read_bytes()]


def test_a_secret_in_a_log_message_is_redacted(monkeypatch, capsys):
    monkeypatch.setenv("EXAMPLE_API_KEY", "plain-words-7")
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    start_logging()
    try:
        raise ValueError("not plain-words-7")
    except ValueError:
        logging.exception("refused: %s", "plain-words-7")
    told = capsys.readouterr().err
    assert "plain-words-7" not in told and told.count("[redacted]") == 3
