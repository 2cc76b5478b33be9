"""What counts in a log: notices, source code, wrapped lines, prefixes, several runs, and logs without a failure."""

import re

from subtest_table import table

from worker.diagnosis.diagnosis import UNKNOWN, diagnose
from worker.diagnosis.parsing.needles import Haystack, needles


def ended(error, *, before="", code="go()"):
    """A log with this text before a traceback of this exception."""
    return (
        f'{before}Traceback (most recent call last):\n  File "/opt/train/a.py", line 1, in main\n    {code}\n{error}\n'
    )


ACCEPTED = (
    "Installed CUDA version 11.3 does not match the version torch was compiled with 11.7 but since the APIs are "
    "compatible, accepting this combination\n"
)
OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"


@table(
    "before",
    [
        ACCEPTED,
        "[2026-01-02 10:00:00,000] [WARNING] [cpu_adam.py:1] CUDA_HOME does not exist, unable to compile CUDA op\n",
        "INFO:root:Retrying: ConnectTimeout from huggingface.co\n",
        "Token indices sequence length is longer than the specified maximum (600 > 512)\n",
    ],
)
def test_a_notice_is_not_the_cause(before):
    diagnosis = diagnose(ended("moon.MoonError: the moon is full", before=before))
    assert diagnosis.cause == UNKNOWN
    assert "the moon is full" in diagnosis.explanation
    assert diagnose(ended("torch.OutOfMemoryError: CUDA out of memory.", before=before)).cause == "cuda_out_of_memory"


def test_source_code_in_a_traceback_is_not_the_cause():
    code = 'raise RuntimeError("CUDA out of memory. Tried to allocate") if full else FileNotFoundError(path)'
    assert diagnose(ended("moon.MoonError: the moon is full", code=code)).cause == UNKNOWN


@table(
    "log",
    [
        OVERFLOW * 3 + "{'loss': 1.5, 'grad_norm': 1.2, 'epoch': 0.1}\n" * 2,
        ACCEPTED + "  3%|3         | 3/100 [00:01<00:33]\n",
        "Token indices sequence length is longer than the specified maximum (600 > 512)\n{'loss': 1.5}\n",
        "{'loss': 1.5, 'grad_norm': 'nan'}\n{'loss': 1.4, 'grad_norm': '1.0'}\n",
        "bitsandbytes: The installed version of bitsandbytes was compiled without GPU support.\n{'loss': 1.5}\n",
        ended("ModuleNotFoundError: No module named 'wandb'") + "***** Running training *****\n",
    ],
)
def test_a_log_without_a_failure_has_no_cause(log):
    assert diagnose(log).cause == UNKNOWN


def test_a_gradient_that_stays_nan_is_a_failure():
    assert diagnose("{'loss': 1.5, 'grad_norm': nan}\n" * 2).cause == "loss_not_finite"


def test_a_message_that_a_console_has_wrapped_is_read():
    error = "RuntimeError: Expected all tensors to be on the\nsame device, but found at least two devices,\ncuda:0 and cuda:1!"
    assert diagnose(ended(error)).cause == "devices_mixed"


def test_code_that_a_console_has_wrapped_is_not_taken_for_the_error():
    text = ended(
        "moon.MoonError: the moon is full", code='loss = step(batch, length)\nrest)\n  File "b.py", line 2, in step'
    )
    assert "moon.MoonError: the moon is full" in diagnose(text).explanation


def test_a_traceback_without_its_header_is_parsed():
    text = ended("KeyError: 'weights'", code="rows[name]").partition("\n")[2]
    assert "in main, a.py" in diagnose(text).explanation


def test_the_second_of_two_runs_in_a_log_counts():
    first = ended("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    second = "$ accelerate launch train.py\n" + ended("PermissionError: [Errno 13] Permission denied: '/out'")
    assert diagnose(first + second).cause == "permission_denied"


@table(
    "prefix",
    [
        "Jan  2 10:00:00 node1 python[4711]: ",
        "trainer-1  | ",
        "[pod/train-0/main] ",
        "node1: ",
        "> ",
        "(RayTrainWorker pid=4711, ip=10.0.0.1) ",
        "2026-01-02T10:00:00.123Z\t",
    ],
)
def test_prefixes_of_log_collectors_do_not_hide_the_traceback(prefix):
    text = ended("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", code="loss.backward()")
    diagnosis = diagnose("".join(prefix + line + "\n" for line in text.splitlines()))
    assert (diagnosis.cause, diagnosis.inferred["phase"]) == ("cuda_out_of_memory", "backward")


def test_an_error_between_many_lines_of_metrics_is_found():
    metrics = "".join(f"{{'loss': 1.{n}, 'epoch': {n}}}\n" for n in range(3000))
    failed = diagnose(metrics + ended("PermissionError: [Errno 13] Permission denied: '/out'"))
    assert (failed.cause, failed.evidence[0].number) == ("permission_denied", 3004)
    went_on = diagnose(metrics + ended("ModuleNotFoundError: No module named 'wandb'") + metrics)
    assert went_on.cause == UNKNOWN


@table(
    ("pattern", "needed"),
    [
        ("disk (?:quota|space) exceeded", {" exceeded"}),
        ("(?:no|out of) memory|disk is full", {" memory", "disk is full"}),
        ("(?:left)?over", {"over"}),
        ("(?i:memory)|disk", set()),
        (r"\d+", set()),
    ],
)
def test_a_match_of_a_pattern_contains_one_of_its_needles(pattern, needed):
    assert needles(re.compile(pattern)) == needed


def test_a_pattern_is_tried_only_if_the_text_has_its_words():
    haystack = Haystack("the disk is full", "of rows")
    assert haystack.may_contain(re.compile("disk (?:is|was) full"))
    assert haystack.may_contain(re.compile(r"\d+"))
    assert not haystack.may_contain(re.compile("memory is full"))
    assert not haystack.may_contain(re.compile("full of rows"))


def test_a_message_that_begins_with_a_very_long_list_is_read_to_its_end():
    names = {f"model.layers.{number}.self_attn.{part}_proj" for number in range(80) for part in "qkvo"}
    diagnosis = diagnose(ended(f"ValueError: Target modules {names} not found in the base model."))
    assert diagnosis.cause == "target_modules_missing"
