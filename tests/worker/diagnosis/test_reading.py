"""What counts in a log: notices, source code, wrapped lines, prefixes, several runs, and logs without a failure."""

import random
import re

import pytest
from subtest_table import table

from benchmarks.diagnosis.judged_logs import of_tests
from benchmarks.diagnosis.variants import VARIANTS, varied
from worker.diagnosis.diagnosis import NO_FAILURE, UNKNOWN, diagnose
from worker.diagnosis.log_file import Excerpt
from worker.diagnosis.parsing.needles import Haystack, needles
from worker.diagnosis.timeline import Log


def ended(error, *, before="", code="go()"):
    """A log with this text before a traceback of this exception."""
    return (
        f'{before}Traceback (most recent call last):\n  File "/opt/train/a.py", line 1, in main\n    {code}\n{error}\n'
    )


ACCEPTED = (
    "Installed CUDA version 11.3 does not match the version torch was compiled with 11.7 but since the APIs are "
    "compatible, accepting this combination\n"
)
START = "2026-01-04 17:18:04,389 - INFO - Starting the fine-tuning process\n"
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
        "step:1 - actor/pg_loss:np.float64(0.0131) - response/aborted_ratio:0.0\n",
        "".join(f"WARNING 06-25 16:32:09 [utils.py:4] {line}\n" for line in ended("ImportError: libx.so").split("\n"))
        + "INFO 06-25 16:32:19 [core.py:306] ready\n",
        "ERROR:2026-03-02 11:56:34,332:git root error: Cmd('git') failed due to: exit code(128)\n"
        "  stderr: 'fatal: detected dubious ownership in repository at '/home/me/code'\n",
        "The repository for a/b contains custom code which must be executed to correctly load the model.\n"
        + "Loading and generating\n" * 40,
        '{"OUTPUT": "I cannot answer that: the device failed."}\n' * 3,
        "A matching Triton is not available\nError caught was: No module named 'triton'\n",
        "[2026-02-26 21:57:44,754][jax._src][INFO] - Unable to initialize backend 'tpu': Failed to open libtpu.so\n"
        * 3,
        "[2026-04-14 15:15:11,403] ERROR: Exception in a request: FlashAttention only support fp16 and bf16 data type\n"
        + "[2026-04-14 15:15:28,187] INFO: answered\n" * 40,
        "{'loss': 1.5, 'epoch': 1.0}\n"
        + ended(
            "AttributeError: no _workers_status", before="Exception ignored in: <function Iterator.__del__ at 0x7f>\n"
        ),
        "Failed to detect the name of this notebook, you can set it manually\nwandb: W&B syncing failed, retrying\n",
        START + "2026-01-04 17:18:06,410 - ERROR - Can't load tokenizer for 'a/b'\n" + START,
    ],
)
def test_a_log_without_a_failure_has_no_cause(log):
    diagnosis = diagnose(log)
    assert (diagnosis.cause, diagnosis.title) == (NO_FAILURE, "This log shows no failure.")
    assert diagnosis.evidence == ()


def test_rows_of_metrics_of_one_length_are_no_parts_of_a_broken_line():
    log = next(one.text for one in of_tests() if one.name == "segmentation_fault.after_rows_of_one_length")
    assert [line.text for line in diagnose(log).evidence] == ["Fatal Python error: Segmentation fault"]


def test_a_text_that_says_what_to_do_if_an_error_occurs_is_no_event():
    notice = (
        "set HSA_OVERRIDE_GFX_VERSION: if you get `CUDA error: invalid device function` errors, set it to 10.3.0.\n"
    )
    hang = "[rank1]:[E1 x.cpp:6] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) "
    assert diagnose(notice).cause == NO_FAILURE
    assert diagnose(notice + hang + "ran for 600010 milliseconds before timing out.\n").cause == "nccl_timeout"


def test_an_unknown_error_names_the_nearest_known_cause():
    diagnosis = diagnose(
        ended("RuntimeError: the tensors are on the wrong device: two devices, all must be the same device")
    )
    assert (diagnosis.cause, diagnosis.inferred) == (UNKNOWN, {"nearest": "devices_mixed"})
    assert "devices_mixed" in diagnosis.explanation
    assert diagnose(ended("moon.MoonError: the moon is full")).inferred == {}


def test_a_gradient_that_stays_nan_is_a_failure():
    assert diagnose("{'loss': 1.5, 'grad_norm': nan}\n" * 2).cause == "loss_not_finite"


def test_a_gradient_that_becomes_nan_in_the_last_step_is_a_failure():
    steps = "".join(f"{{'loss': 0.{n}, 'grad_norm': {value}}}\n" for n, value in enumerate([1.5, 2.5, 0.5]))
    assert diagnose(steps + "{'loss': 0.4, 'grad_norm': nan}\n").cause == "loss_not_finite"


def test_a_message_that_a_console_has_wrapped_is_read():
    error = "RuntimeError: Expected all tensors to be on the\nsame device, but found at least two devices,\ncuda:0 and cuda:1!"
    assert diagnose(ended(error)).cause == "devices_mixed"


def test_a_line_that_a_terminal_broke_inside_a_word_is_read():
    error = "[rank6]:[E1 10:00:00.0 ProcessGroupNCCL.cpp:607] [Rank 6] Watchdog caught collective operation timeout: "
    error += (
        "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds"
    )
    broken = "".join(error[start : start + 80] + "\n" for start in range(0, len(error), 80))
    assert diagnose(broken).cause == "nccl_timeout"
    assert diagnose("".join(f"(Worker pid=7) {line}\n" for line in broken.splitlines())).cause == "nccl_timeout"


def test_frames_as_wide_as_a_terminal_are_not_joined_with_their_code():
    frame = '  File "/opt/train/{}/module.py", line 1751, in _wrapped_call_impl\n    return self._call_impl(*args)\n'
    text = "Traceback (most recent call last):\n" + "".join(frame.format(name) for name in ("aaa", "bbb", "ccc"))
    assert "(in _wrapped_call_impl, module.py)" in diagnose(f"{text}moon.MoonError: the moon is full\n").explanation


def test_a_warning_of_a_logger_is_no_error_among_its_other_lines():
    template = "2026-01-02 10:00:00,123 - trainer - {} - {}\n"
    text = template.format("INFO", "epoch 1") * 3 + template.format("WARNING", "ConnectTimeout: huggingface.co") * 2
    assert diagnose(text).cause == NO_FAILURE


def same_answers(variants, seed):
    """The share of the logs in tests/logs whose diagnosis stays the same as each variant prints them, and the others."""
    logs = of_tests()
    drawn = [
        (log, name) for log in logs for name in random.Random(f"{seed} {log.name}").sample(sorted(VARIANTS), variants)
    ]
    others = [(log.name, name) for log, name in drawn if diagnose(varied(log.text, name, seed)).cause not in log.accept]
    return 1 - len(others) / len(drawn), others


@pytest.mark.slow
def test_prefixes_and_line_breaks_do_not_change_the_diagnosis():
    same, others = same_answers(2, seed=31)
    assert same >= 0.99, others


@pytest.mark.nightly
def test_no_prefix_and_no_line_break_changes_the_diagnosis():
    same, others = same_answers(len(VARIANTS), seed=7)
    assert same >= 0.99, others


def test_code_that_a_console_has_wrapped_is_not_taken_for_the_error():
    text = ended(
        "moon.MoonError: the moon is full", code='loss = step(batch, length)\nrest)\n  File "b.py", line 2, in step'
    )
    assert "moon.MoonError: the moon is full" in diagnose(text).explanation


def test_a_traceback_without_its_header_is_parsed():
    text = ended("moon.MoonError: the moon is full").partition("\n")[2]
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
        "INFO 2026-01-02T10:00:00.123456Z [resource.labels.containerName: main] (Core pid=7) ERROR 01-02 10:00:00 [core.py:842] ",
        "2026-01-02 10:00:00,123 - trainer - ERROR - ",
        "2026-01-02 10:00:00.123 | ERROR    | train:main:87 - ",
        "[2026-01-02 10:00:00,123] [ERROR] [engine.py:1988:step] ",
        "[1,mpirank:3,algo-1]<stderr>:",
        "(TrainWorker pid=4711) [repeated 3x across cluster] ",
        "    ",
    ],
)
def test_prefixes_of_log_collectors_do_not_hide_the_traceback(prefix):
    text = ended("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", code="loss.backward()")
    diagnosis = diagnose("".join(prefix + line + "\n" for line in text.splitlines()))
    assert (diagnosis.cause, diagnosis.inferred["phase"]) == ("cuda_out_of_memory", "backward")


def test_a_log_with_only_the_launchers_report_is_a_failure_of_a_rank():
    raised = ended("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
    assert diagnose(raised).cause == "rank_failed"
    assert diagnose("".join(f"        | {line}\n" for line in raised.splitlines())).cause == "rank_failed"


def test_an_error_between_many_lines_of_metrics_is_found():
    metrics = "".join(f"{{'loss': 1.{n}, 'epoch': {n}}}\n" for n in range(3000))
    failed = diagnose(metrics + ended("PermissionError: [Errno 13] Permission denied: '/out'"))
    assert (failed.cause, failed.evidence[0].number) == ("permission_denied", 3004)
    went_on = diagnose(metrics + ended("ModuleNotFoundError: No module named 'wandb'") + metrics)
    assert went_on.cause == NO_FAILURE


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


WRAPPED = "2025-10-31 03:11:02,475 - trainer - INFO - "
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@table(
    ("log", "cause"),
    [
        (
            "".join(f"{WRAPPED}[rank7]: {line}\n" for line in ended(OUT_OF_MEMORY).strip().split("\n")),
            "cuda_out_of_memory",
        ),
        (
            f"{WRAPPED}started\n"
            + "".join(f"{WRAPPED}{line}\n" for line in ended(OUT_OF_MEMORY).strip().split("\n"))
            + "2025-10-31 03:11:03,475 - trainer - ERROR - the worker exited\n",
            "cuda_out_of_memory",
        ),
        (f"loading\n{WRAPPED}{OUT_OF_MEMORY}\nleaving\n", "cuda_out_of_memory"),
        ("[2025-06-01 12:00:00] [INFO] stderr: ModuleNotFoundError: No module named 'trl'\n", "package_missing"),
        (f"{WRAPPED}{OUT_OF_MEMORY}\n" + f"{WRAPPED}the next batch\n" * 5, NO_FAILURE),
        (f"WARNING:train:{OUT_OF_MEMORY}\nWARNING:train:skipped\n", NO_FAILURE),
    ],
)
def test_the_level_of_a_program_that_logs_anothers_output_hides_no_failure(log, cause):
    assert diagnose(log).cause == cause


def test_an_empty_line_is_not_joined_with_the_next():
    diagnosis = diagnose("started\n\nmoon.MoonError: the moon is full\n")
    assert [line.number for line in diagnosis.evidence] == [3]


@table(
    ("log", "cause"),
    [
        ("E       FileNotFoundError: [Errno 2] No such file or directory: '/a.jsonl'\n\ntests/a.py:4: FileNotFoundError\n",
         "file_missing"),
        (">       lora(8)\nE       ValueError: `r` should be a positive integer value\n", "settings_invalid"),
        ("worker 3 failed: ValueError('num_heads (12) must be divisible by tensor parallel size (8)')\n", "not_divisible"),
        ('Task failed with RuntimeError("NCCL error in: x.cpp:12, unhandled system error")\n', "nccl_failed"),
        ("retrying after ValueError('num_heads (12) must be divisible by tensor parallel size (8)')\n", UNKNOWN),
        ("RuntimeError: element 1 of tensors does not require grad and does not have a grad_fn\n", "nothing_requires_grad"),
    ],
)  # fmt: skip
def test_exceptions_of_pytest_repr_and_other_words_are_read(log, cause):
    assert diagnose(log).cause == cause


def test_a_message_with_other_words_of_a_known_one_is_an_answer_at_one_half():
    diagnosis = diagnose("RuntimeError: element 1 of tensors does not require grad and does not have a grad_fn")
    assert (diagnosis.cause, diagnosis.confidence) == ("nothing_requires_grad", 0.5)


def test_the_traceback_of_ray_in_a_notebook_is_read_with_its_frames():
    log = """RayTaskError(PermissionError)             Traceback (most recent call last)
Cell In [26], line 2
----> 2 ray.get(train_fn.remote())
RayTaskError(PermissionError): ray::train_fn() (pid=306, ip=10.0.0.1)
moon.MoonError: the moon is full
"""
    assert len(Log([Excerpt(1, log)]).tracebacks[0].frames) == 1
