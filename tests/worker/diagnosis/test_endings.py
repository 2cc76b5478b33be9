"""The exception that ended a run decides: in notebooks, in chains of exceptions, and beside other output."""

import re

from paths import TESTS
from subtest_table import table

from worker.diagnosis.causes import CAUSES
from worker.diagnosis.diagnosis import NO_FAILURE, UNKNOWN, diagnose

LOGS = TESTS / "logs"
MORE = sorted((LOGS / "more").glob("*.log"))
OWN = "error_in_own_code"
HANDLED = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
FRAME = re.compile(r'\s+File "([^"]*)", line (\d+), in (.*)')
HEADER = "Traceback (most recent call last)"


def raised(error, *, file="/opt/train/a.py", function="main", code="go()"):
    """A traceback of this exception with one frame."""
    return f'{HEADER}:\n  File "{file}", line 1, in {function}\n    {code}\n{error}\n'


def as_in_a_notebook(text):
    """The log with each of Python's tracebacks as IPython prints it."""
    lines, frames = [], None
    for line in text.split("\n"):
        if line.startswith(HEADER):
            frames = []
        elif frames is None:
            lines.append(line)
        elif found := FRAME.match(line):
            file, number, function = found.groups()
            frames += [
                "",
                f"File {file}:{number}, in {function}(values)" if "packages" in file else f"Cell In[3], line {number}",
            ]
        elif line.startswith(" "):
            frames.append(f"----> 3 {line.strip()}")
        elif line:
            name = line.partition(":")[0].rpartition(".")[2]
            lines += ["-" * 75, f"{name:<42}{HEADER}", *frames[1:], "", line]
            frames = None
    return "\n".join(lines)


def plain_logs():
    """The names of the causes whose log has a traceback of one process."""
    for cause in CAUSES:
        text = (LOGS / f"{cause.name}.log").read_text(encoding="utf-8")
        if f"\n{HEADER}" in f"\n{text}" and "torch/distributed/run.py" not in text and "Original Traceback" not in text:
            yield cause.name


OPTIMIZER = {"file": "/opt/lib/python3/site-packages/torch/optim/optimizer.py", "function": "load_state_dict"}


@table(
    ("text", "cause"),
    [
        ("pyarrow.lib.ArrowInvalid: offset overflow", UNKNOWN),
        ("subprocess.TimeoutExpired: Command 'ninja' timed out after 60 seconds", UNKNOWN),
        ("ValueError: Size mismatch between saved torch.Size([9, 4]) and current: torch.Size([36]) for model.w", "size_mismatch"),
        ("RuntimeError: Missing key in checkpoint state_dict: optim.state.w.step", "optimizer_state_mismatch"),
        ("RuntimeError: Missing key in checkpoint state_dict: model.layers.0.w", "state_dict_keys"),
        ("AttributeError: 'OwnTokenizerFast' object has no attribute 'end_of_text'", "package_incompatible"),
        ("ValueError: rope_scaling must contain keys {'kind'}", "package_incompatible"),
        (raised("TypeError: SFTTrainer.push_card() got an unexpected keyword argument 'base'"), "package_incompatible"),
        (raised("KeyError: 'param_groups'", **OPTIMIZER), "optimizer_state_mismatch"),
    ],
)  # fmt: skip
def test_an_excerpt_of_a_few_lines_has_its_cause(text, cause):
    assert diagnose(text + "\n").cause == cause


@table("path", MORE)
def test_every_further_log_has_the_cause_that_its_name_gives(path):
    diagnosis = diagnose(path.read_text(encoding="utf-8"))
    assert diagnosis.cause == path.stem.partition(".")[0], diagnosis.explanation


@table("name", list(plain_logs()))
def test_a_cause_is_found_in_a_notebook_too(name):
    text = as_in_a_notebook((LOGS / f"{name}.log").read_text(encoding="utf-8"))
    assert text.count("-" * 75)
    assert diagnose(text).cause == name


def test_an_unknown_error_in_a_notebook_is_shown_with_its_frame():
    text = as_in_a_notebook(
        raised("NameError: name 'model' is not defined", file="site-packages/torch/a.py", function="run")
    )
    diagnosis = diagnose(text)
    assert diagnosis.cause == UNKNOWN
    assert "name 'model' is not defined (in run, a.py)" in diagnosis.explanation


def test_of_two_exceptions_of_one_program_the_last_counts():
    caught = raised("ModuleNotFoundError: No module named 'flash_attn'")
    assert (
        diagnose(caught + "no fast kernels\n" + raised("OSError: [Errno 28] No space left on device")).cause
        == "disk_full"
    )
    assert diagnose(caught + "no fast kernels\n" + raised("moon.MoonError: the moon is full")).cause == UNKNOWN


@table(
    ("first", "link", "last", "cause"),
    [
        ("KeyError: 'text'", HANDLED, "moon.MoonError: the moon is full", UNKNOWN),
        ("OSError: [Errno 28] No space left on device", HANDLED, "moon.MoonError: the moon is full", "disk_full"),
        ("OSError: [Errno 28] No space left on device", CAUSED, "moon.MoonError: the moon is full", "disk_full"),
        ("PermissionError: [Errno 13] Permission denied: '/out'", HANDLED, "KeyboardInterrupt", "permission_denied"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'a/config.json'",
            HANDLED,
            "OSError: a is not a local folder and is not a valid model identifier listed on the hub",
            "model_not_found",
        ),
        (
            "OSError: [Errno 28] No space left on device",
            CAUSED,
            "OSError: We couldn't connect to 'https://huggingface.co' to load this file",
            "disk_full",
        ),
        (
            "KeyError: 'text'",
            HANDLED,
            "OSError: We couldn't connect to 'https://huggingface.co' to load this file",
            "network_unreachable",
        ),
    ],
)
def test_the_last_exception_of_a_chain_that_names_a_cause_decides(first, link, last, cause):
    assert diagnose(raised(first) + link + raised(last)).cause == cause
    assert diagnose(as_in_a_notebook(raised(first) + link + raised(last))).cause == cause


def test_an_exception_that_was_handled_gives_less_confidence():
    first, last = raised("OSError: [Errno 28] No space left on device"), raised("moon.MoonError: the moon is full")
    assert diagnose(first + HANDLED + last).confidence < diagnose(first + CAUSED + last).confidence


def test_of_two_exceptions_of_one_cause_the_first_in_the_chain_is_analyzed():
    first = raised(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.43 GiB.", code="scores.softmax(-1)"
    )
    last = raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.91 GiB.", code="batch.to(device)")
    diagnosis = diagnose(first + HANDLED + last)
    assert diagnosis.inferred["bytes_requested"] == round(12.43 * 2**30)


def test_an_exception_at_exit_or_in_a_destructor_is_not_the_end():
    text = raised("OSError: [Errno 28] No space left on device")
    text += "Exception ignored in: <function Writer.__del__ at 0x7f>\n" + raised("FileNotFoundError: no file")
    assert diagnose(text).cause == "disk_full"


def test_a_child_process_that_failed_counts_beside_its_interrupted_parent():
    text = (
        "Process SpawnProcess-1:\n"
        + raised("OSError: [Errno 28] No space left on device")
        + raised("KeyboardInterrupt")
    )
    assert diagnose(text).cause == "disk_full"


def test_a_traceback_pasted_with_an_indent_is_parsed():
    text = f'{HEADER}:\n    File "a.py", line 1, in main\n        go()\n    moon.MoonError: the moon is full\n'
    assert "moon.MoonError: the moon is full (in main, a.py)" in diagnose(text).explanation


@table(
    ("error", "code", "cause"),
    [
        ("SFTTrainer.__init__() got an unexpected keyword argument 'packing'", "SFTTrainer(", "package_incompatible"),
        ("__init__() got an unexpected keyword argument 'evaluation_strategy'", "a = TrainingArguments(", "package_incompatible"),
        ("plot() got an unexpected keyword argument 'colour'", "plot(colour='red')", OWN),
        ("forward() got an unexpected keyword argument 'label'", "model(**row)", OWN),
    ],
)  # fmt: skip
def test_an_unknown_argument_of_the_users_own_is_not_an_incompatible_package(error, code, cause):
    assert diagnose(raised(f"TypeError: {error}", code=code)).cause == cause


def test_an_argument_that_one_package_gives_another_is_incompatible():
    error = "TypeError: load() got an unexpected keyword argument 'wide'"
    assert diagnose(raised(error, file="/opt/venv/lib/python3.11/site-packages/a.py")).cause == "package_incompatible"


def test_a_name_imported_from_a_file_of_the_users_own_is_not_an_incompatible_package():
    error = "ImportError: cannot import name 'rows' from 'utils' ({})"
    assert diagnose(raised(error.format("/home/ada/utils.py"))).cause == UNKNOWN
    assert diagnose(raised(error.format("/opt/site-packages/utils.py"))).cause == "package_incompatible"


def test_what_is_printed_after_an_interruption_is_not_the_cause():
    assert (
        diagnose(raised("KeyboardInterrupt") + "wandb: ERROR ConnectTimeout from huggingface.co\n").cause
        == "interrupted"
    )


@table(
    ("error", "code", "cause"),
    [
        ("KeyError: 'content'", "return reply['content']", OWN),
        ("KeyError: 'content'", "return row['content']", "dataset_column_missing"),
        ("KeyError: 'eval_accuracy'", "best = scores['eval_accuracy']", OWN),
        ("json.decoder.JSONDecodeError: Expecting value: line 1", "score = json.loads(reply)", UNKNOWN),
        ("json.decoder.JSONDecodeError: Expecting value: line 1", "config = json.load(file)", "json_broken"),
    ],
)
def test_the_code_that_failed_distinguishes_rows_and_files_from_other_values(error, code, cause):
    assert diagnose(raised(error, code=code)).cause == cause


@table(
    "log",
    [
        "10:00:00: E external/local_xla/cuda.cc:2] failed call to cuInit: no CUDA-capable device is detected\nSaved.\n",
        "ReadTimeoutError(host='huggingface.co') thrown while requesting HEAD\nRetrying in 1s [Retry 1/5].\n",
        "Checked 3 losses, non-finite: 0\nSaved.\n",
        "preprocessor_config.json: 100%|###| 1/1\nSaved.\n",
    ],
)
def test_output_of_a_run_without_a_failure_is_no_cause(log):
    assert diagnose(log).cause == NO_FAILURE


def test_losses_without_a_colon_show_that_training_went_on() -> None:
    log = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\nretrying with 4 rows\n"
    log += "".join(f"step {step} loss {3 - step / 10}\n" for step in range(1, 4))
    assert diagnose(log).cause == NO_FAILURE
