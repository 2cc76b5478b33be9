"""`lathe diagnose`: logs of any length and content, and runs of Lathe."""

import io
import json
import sys

import pytest
from commands import answer, lathe
from played_run import PlayedRun

from worker.diagnosis import log_file
from worker.diagnosis.diagnosis import NO_FAILURE, UNKNOWN, diagnose
from worker.diagnosis.log_file import read_log
from worker.store.tables import Status

ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB.\n"
CONFIG = {"num_attention_heads": 32, "hidden_size": 4096, "vocab_size": 32000, "max_position_embeddings": 4096}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("starting\n" + ERROR, encoding="utf-8")
    return path


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


def test_a_log_is_diagnosed_in_json(log):
    output = answer("diagnose", log)
    assert (output["cause"], output["evidence"], output["evidence_lines"]) == (
        "cuda_out_of_memory",
        [ERROR.strip()],
        [2],
    )
    assert output["inferred"]["bytes_requested"] == 8 * 2**30
    assert {"confidence", "first_failed_rank", "fix", "changes", "explanation"} <= output.keys()


def test_model_and_micro_batch_give_the_sequence_length(log, config, tmp_path):
    for model in (config, tmp_path):
        inferred = answer("diagnose", log, "--model", model, "--micro-batch", "4")["inferred"]
        assert (inferred["batch_size"], inferred["sequence_length"]) == (4, 4096)


def test_the_text_output_has_cause_evidence_and_fix(log):
    stdout = lathe("diagnose", log).stdout
    assert "Out of GPU memory." in stdout
    assert "line 2: torch.OutOfMemoryError" in stdout
    assert "Halve micro_batch_size" in stdout


def test_a_log_can_come_from_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ERROR.encode())))
    from app.cli.diagnose import _read

    assert diagnose(_read("-")).cause == "cuda_out_of_memory"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ([], "LOG"),
        (["no-such.log"], "LOG"),
        (["."], "LOG"),
        (["a\0b"], "LOG"),
    ],
)
def test_an_unreadable_log_is_named_in_the_error(home, arguments, field):
    result = lathe("diagnose", *arguments, "--json")
    [problem] = json.loads(result.stdout)["error"]
    assert (result.exit_code, problem["field"]) == (1, field)
    assert problem["fix"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"hidden_size": 8}', None])
def test_a_model_without_dimensions_is_named_in_the_error(log, tmp_path, content):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    result = lathe("diagnose", log, "--model", path, "--json")
    [problem] = json.loads(result.stdout)["error"]
    assert (result.exit_code, problem["field"], problem["value"]) == (1, "model", str(path))


def test_a_run_is_diagnosed_from_its_log(home):
    run = PlayedRun("sums").claim()
    run.prints(ERROR)
    run.end(Status.FAILED)
    assert answer("diagnose", "--run", run.id)["cause"] == "cuda_out_of_memory"


def test_a_failed_run_shows_cause_and_fix_with_its_error(home):
    diagnosis = diagnose("ValueError: Attempting to unscale FP16 gradients.").document()
    run = (
        PlayedRun("sums").claim().end(Status.FAILED, error={"message": "ValueError", "fix": "", "diagnosis": diagnosis})
    )
    stdout = lathe("show", run.id).stdout
    assert (
        "fp16 weights were trained with a gradient scaler, which needs fp32 weights. (fp16_weights_trained)" in stdout
    )
    assert "which has no scaler" in stdout


def test_a_long_log_is_read_at_its_start_its_end_and_its_first_error(monkeypatch):
    monkeypatch.setattr(log_file, "CHUNK", 1000)
    lines = [f"line {number}" for number in range(1, 5001)]
    lines[2499] = "PermissionError: [Errno 13] Permission denied: '/scratch'"
    lines[2498] = "Traceback (most recent call last):"
    parts = read_log(io.BytesIO("\n".join(lines).encode()))
    assert sum(len(part.text) for part in parts) <= 6500
    assert (parts[0].text[:6], parts[-1].text[-9:]) == ("line 1", "line 5000")
    diagnosis = diagnose(parts)
    assert (diagnosis.cause, [line.number for line in diagnosis.evidence]) == ("permission_denied", [2500])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 1000,
        bytes(range(256)) * 50,
        b"\n" * 10_000,
        b"\r" * 10_000,
        b"\xff\xfe",
        b"\xff\xfe\x00",
        b"[rank" * 2000,
        b"Traceback (most recent call last):\n" * 500,
        b"Traceback (most recent call last):",
    ],
)
def test_no_bytes_crash_the_diagnosis(data):
    assert diagnose(read_log(io.BytesIO(data))).cause in (UNKNOWN, NO_FAILURE)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
def test_logs_are_read_in_several_encodings(encoding):
    diagnosis = diagnose(read_log(io.BytesIO(("Übung beginnt\n" + ERROR).encode(encoding))))
    assert diagnosis.cause == "cuda_out_of_memory"
