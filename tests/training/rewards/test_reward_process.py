"""Tests of the process that computes rewards: what users write in their files, and what must not harm the run or the machine."""

import ctypes
import errno
import itertools
import json
import math
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from judge_server import JudgeServer
from paths import ROOT
from patience import eventually
from subtest_table import table

from training.jail import landlock
from training.rewards import judge, reward_process
from training.rewards.own_functions import name_fault
from training.rewards.reward_batch import RewardBatch
from training.rewards.reward_child import RewardChild
from training.rewards.reward_process import DEATHS, RewardProcess
from training.rewards.rewards import Reward, parse_rewards
from training.rewards.sample import Sample

GRADED = json.dumps({"choices": [{"message": {"content": "10"}}]})
LINUX = sys.platform == "linux"
SAMPLES = [Sample("p", "a" * index, "aa", {"n": index, "prompt": "p"}, number=index + 4) for index in range(4)]
GOOD = "def good(prompt, answer, expected):\n    return len(answer) / len(expected)\n"

WRITE_EVERYWHERE = """
import contextlib, os, time
def write_everywhere(text):
    for handle in range(3, 10):
        with contextlib.suppress(OSError):
            os.write(handle, text)
    time.sleep(10_000)
"""


def process(tmp_path, code, names="own.py:score, own.py:good, exact_match", **limits):
    return RewardProcess(parse_rewards(names), {"own.py": GOOD + code}, tmp_path / "rewards", **limits)


def check_others(scores):
    assert scores.values["own.py:good"] == [0, 0.5, 1, 1.5]
    assert scores.values["exact_match"] == [0, 0, 1, 0]
    assert not scores.troubles.keys() - {"own.py:score"}


@table(
    ("code", "expected"),
    [
        ("def score(prompt, answer, expected): return len(prompt + answer)", [1, 2, 3, 4]),
        ("def score(question, reply, reference): return reference == reply", [0, 0, 1, 0]),
        ("def score(prompt, answer, expected, row): return row['n']", [0, 1, 2, 3]),
        ("def score(answer): return len(answer)", [0, 1, 2, 3]),
        ("def score(answer, row=None): return row['n'] + len(answer)", [0, 2, 4, 6]),
        ("def score(prompt, answer, expected): return None if answer == 'a' else 1", [1, None, 1, 1]),
        ("def score(completions, **columns): return [n + len(c) for n, c in zip(columns['n'], completions)]", [0, 2, 4, 6]),
        ("def score(prompts, completions, n, trainer_state): return [x * len(p) for x, p in zip(n, prompts)]", [0, 1, 2, 3]),
        ("import numpy\ndef score(prompts, completions, **kw): return numpy.array([.5] * len(prompts))", [0.5] * 4),
    ],
)  # fmt: skip
def test_a_function_is_called_as_its_signature_says(tmp_path, code, expected):
    with process(tmp_path, code) as rewards:
        scores = rewards.score(SAMPLES)
    assert scores.values["own.py:score"] == expected
    check_others(scores)
    assert not scores.troubles


def test_chat_rows_give_a_batch_function_messages_as_trl_does(tmp_path):
    code = "def score(prompts, completions): return [len(p) + (c[0]['content'] == 'x') for p, c in zip(prompts, completions)]"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    with process(tmp_path, code, "own.py:score") as rewards:
        scores = rewards.score([Sample("u", answer, "e", {"prompt": messages}) for answer in ("x", "y")])
    assert scores.values["own.py:score"] == [3, 2]


def test_options_reach_the_function(tmp_path):
    text = '[{"reward": "own.py:score", "factor": 3}]'
    with process(tmp_path, "def score(prompt, answer, expected, *, factor=1): return factor * len(answer)", text) as it:
        assert it.score(SAMPLES).values["own.py:score"] == [0, 3, 6, 9]
    with process(tmp_path, "def score(prompt, answer, expected): return 1", text) as it:
        assert "with the options factor" in it.score(SAMPLES).troubles["own.py:score"].sentence


def test_files_that_rewards_name_can_import_each_other(tmp_path):
    code = {
        "own.py": "from helper import two\ndef score(answer): return two(answer)",
        "helper.py": "def two(answer): return 2",
    }
    with RewardProcess(parse_rewards("own.py:score, helper.py:two"), code, tmp_path) as rewards:
        assert rewards.score(SAMPLES).values["own.py:score"] == [2, 2, 2, 2]


def test_a_file_that_no_reward_names_is_not_there_and_no_file_takes_the_place_of_a_module(tmp_path):
    code = {
        "unnamed.py": "",
        "py3langid.py": "raise SystemExit",
        "math_verify.py": "def score(answer): return 5",
        "json.py": "x",
    }
    own = "def score(answer):\n    import importlib.util\n    return importlib.util.find_spec('unnamed') is not None\n"
    names = "own.py:score, math_verify.py:score, boxed"
    with RewardProcess(parse_rewards(names), code | {"own.py": own}, tmp_path / "files") as rewards:
        scores = rewards.score([Sample("p", r"\boxed{1 + x}", "x + 1")])
    assert scores.values["own.py:score"] == [0]
    assert scores.values["boxed"] == [1 if find_spec("math_verify") else 0]
    assert {path.name for path in (tmp_path / "files").iterdir()} == {"own.py", "math_verify.py"}


@table(
    ("file", "fault"),
    [
        ("own.py", ""), ("rewards.py", ""), ("json.py", "that Python or an installed"), ("sys.py", "that Python"),
        ("pydantic.py", "that Python"), ("training.py", "that Python"), ("re2.py", "that Python"), ("a-b.py", "Python module"),
        ("..py", "Python module"), ("a.b.py", "Python module"), ("class.py", "Python module"),
    ],
)  # fmt: skip
def test_files_of_code_have_names_that_no_module_has(file, fault):
    if file != "re2.py" or find_spec("re2"):
        assert fault in name_fault(file)
        assert bool(fault) == bool(name_fault(file))


@table(
    ("module", "reward", "answer", "score"),
    [
        ("re2", {"reward": "regex", "pattern": "b+$"}, "ab", 1.0),
        ("math_verify", {"reward": "boxed"}, r"\boxed{x + 1}", 1.0),
        ("py3langid", {"reward": "language", "code": "de"}, "Das ist ein Satz über zwei Hunde.", 1.0),
    ],
)
def test_rewards_of_other_packages_need_nothing_that_the_process_refuses(tmp_path, module, reward, answer, score):
    if find_spec(module) is not None:  # rows of a table cannot skip
        with RewardProcess(parse_rewards(json.dumps([reward])), {}, tmp_path) as rewards:
            scores = rewards.score([Sample("p", answer, "1 + x")])
        assert not scores.troubles
        assert scores.values[reward["reward"]] == [pytest.approx(score, abs=0.1)]


@table(
    ("body", "kind", "message"),
    [
        ("return row['total']", "exception", "row 5, own.py, line 5: KeyError: 'total'"),
        ("raise SystemExit(2)", "exception", "row 5, own.py, line 5: SystemExit: 2"),
        ("return score(prompt, answer, expected, row)", "exception", "RecursionError"),
        ("return float('nan')", "not a number", "row 5: own.py: score returned 'nan' (float), not a finite number or None"),
        ("return 'text'", "not a number", "row 5: own.py: score returned 'text' (str)"),
        ("return len(bytearray(10 * 2**30))", "memory", "row 5, own.py, line 5: MemoryError"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "refused", "line 5: PermissionError"),
        ("import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')", "refused", "no network"),
        ("open('FOLDER/written', 'w').write('x')", "refused", "may not write files"),
        ("import os; os.remove('FOLDER/kept')", "refused", "may not use os.remove"),
        ("import shutil; shutil.rmtree('FOLDER')", "refused", "may not use shutil.rmtree"),
        ("import os; os.fork()", "refused", "may not use os.fork"),
        ("import multiprocessing as m; m.Process(target=print).start()", "refused", "line 5: PermissionError"),
        ("import subprocess; subprocess.run(['true'])", "refused", "may not use subprocess.Popen"),
        ("import os; os.kill(os.getppid(), 9)", "refused", "may not use os.kill"),
    ],
)  # fmt: skip
def test_what_a_function_may_not_do_gives_its_samples_no_score_and_is_named(tmp_path, body, kind, message):
    kept = tmp_path / "kept"
    kept.touch()
    code = f"def score(prompt, answer, expected, row):\n    # a comment\n    {body}\n"
    with process(tmp_path, code.replace("FOLDER", str(tmp_path))) as it:
        for _ in range(2):  # the process goes on
            scores = it.score(SAMPLES)
            assert scores.values["own.py:score"] == [None] * 4
            trouble = scores.troubles["own.py:score"]
            assert (trouble.failed, trouble.kind) == (4, kind)
            assert message in trouble.sentence
            check_others(scores)
    assert kept.exists()
    assert not (tmp_path / "written").exists()


@table(
    "words",
    [("value", 0, math.nan), ("value", 0, 10**400), ("value", 9, 1), ("failed", 0, "kind", {}), ("reward", "other")],
)
def test_what_a_function_writes_in_place_of_an_answer_is_none(words):
    batch = RewardBatch(SAMPLES, {"own.py:score": [None] * 4}, range(4), reward="own.py:score")
    with pytest.raises((ValueError, TypeError, LookupError, OverflowError)):
        batch.take(*words)
    assert batch.values == {"own.py:score": [None] * 4} and not batch.failed


@pytest.mark.slow
@table(
    ("body", "kind", "message"),
    [
        ("while True: pass", "time", "row 6, own.py:score: took more than 2 s (processor time: "),
        ("import time; time.sleep(10_000)", "time", "row 6, own.py:score: took more than 2 s (processor time: 0."),
        ("import os; os._exit(3)", "ended", "row 6, own.py:score: ended its process (exit code 3)"),
        ("import ctypes; ctypes.string_at(0)", "ended", "row 6, own.py:score: ended its process (SIGSEGV)"),
        ("write_everywhere(b'x\\n')", "ended", "wrote into the answers"),
        ("write_everywhere(b'[\"value\", 99, 1]\\n')", "ended", "wrote into the answers"),
        ("write_everywhere(b'[' * 200_000 + b'\\n')", "ended", "wrote into the answers"),
    ],
)
def test_a_sample_that_ends_the_process_twice_has_no_score_and_its_reward_is_given_up_after_three_batches(
    tmp_path, body, kind, message
):
    code = (
        WRITE_EVERYWHERE
        + f"def score(prompt, answer, expected):\n    if answer == 'a':\n        {body}\n    return 1\n"
    )
    with process(tmp_path, code, seconds_per_batch=2) as rewards:
        for _ in range(DEATHS):
            scores = rewards.score(SAMPLES)
            assert scores.values["own.py:score"] == [1, None, 1, 1] and scores.lost == {1}
            trouble = scores.troubles["own.py:score"]
            assert (trouble.failed, trouble.kind) == (1, kind)
            assert message in trouble.sentence
            check_others(scores)
        scores = rewards.score(SAMPLES)
        assert scores.values["own.py:score"] == [None] * 4
        trouble = scores.troubles["own.py:score"]
        assert (trouble.failed, trouble.kind) == (4, "given up")
        assert "own.py:score is not computed any more: in 3 batches in a row it " in trouble.sentence
        check_others(scores)


def killed_at(monkeypatch, *places):
    """Kills the process, as the kernel does if memory is short, at its answers with these numbers, counted from 0."""
    seen, exchange = itertools.count(), RewardChild.exchange

    def watched(child, request, take, seconds):
        def taken(*words):
            if next(seen) in places:
                os.kill(child._child.pid, signal.SIGKILL)
                child._child.wait()
                raise child._ended()  # what was on its way is lost
            take(*words)

        exchange(child, request, taken, seconds)

    monkeypatch.setattr(RewardChild, "exchange", watched)


BY_SAMPLE = "def score(answer): return len(answer)"
TOGETHER = "def score(completions): return [len(one) - len(completions) for one in completions]"


@pytest.mark.parametrize("code", [BY_SAMPLE, TOGETHER])
def test_a_process_that_is_killed_costs_no_score(tmp_path, monkeypatch, code):
    with process(tmp_path / "undisturbed", code) as rewards:
        expected = rewards.score(SAMPLES)
    for place in range(18):
        with monkeypatch.context() as patched, process(tmp_path / str(place), code) as rewards:
            killed_at(patched, place)
            scores = rewards.score(SAMPLES)
            assert (scores.values, scores.troubles, scores.lost) == (expected.values, {}, frozenset()), place


def test_a_process_that_is_killed_several_times_while_it_starts_costs_no_score(tmp_path, monkeypatch):
    monkeypatch.setattr(reward_process, "_PAUSE_SECONDS", 0.0)
    with process(tmp_path, BY_SAMPLE) as rewards:
        killed_at(monkeypatch, 0, 1, 2)
        scores = rewards.score(SAMPLES)
    assert (scores.values["own.py:score"], scores.lost) == ([0, 1, 2, 3], frozenset())


def test_a_process_that_is_killed_between_batches_costs_no_score(tmp_path):
    others = set(psutil.Process().children())
    with process(tmp_path, BY_SAMPLE) as rewards:
        for _ in range(DEATHS + 1):
            scores = rewards.score(SAMPLES)
            assert scores.values["own.py:score"] == [0, 1, 2, 3] and not scores.troubles
            (child,) = set(psutil.Process().children()) - others
            child.kill()


def test_what_ends_the_process_for_samples_together_each_time_costs_all_of_them(tmp_path):
    code = "import os\ndef score(completions): os._exit(4)"
    with process(tmp_path, code) as rewards:
        scores = rewards.score(SAMPLES)
    assert scores.lost == {0, 1, 2, 3}
    assert (
        "own.py:score, for 4 samples of a batch: ended its process (exit code 4)"
        in scores.troubles["own.py:score"].sentence
    )
    check_others(scores)


@pytest.mark.parametrize(
    ("replies", "values", "lost"),
    [
        ([(403, "no")], [None, 0.2, 0.2, 0.2], {0}),
        ([(200, GRADED), (500, "busy"), (500, "busy")], [1, 0.2, 0.2, 0.2], set()),
        ([(401, "no")] * 20, [None] * 4, {0, 1, 2, 3}),
    ],
)
def test_an_error_of_a_judge_costs_the_score_of_its_sample(tmp_path, monkeypatch, replies, values, lost):
    monkeypatch.setattr(judge, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(judge, "_AT_ONCE", 1)
    server = JudgeServer()
    server.replies = list(replies)
    text = json.dumps([{"reward": "judge", "url": server.url, "model": "m"}])
    with RewardProcess(parse_rewards(text), {}, tmp_path) as rewards:
        scores = rewards.score(SAMPLES)
    server.shutdown()
    server.server_close()
    assert scores.values["judge"] == values and scores.lost == lost
    assert scores.troubles["judge"].failed == len(lost) if lost else not scores.troubles


def test_a_reward_that_works_again_is_not_given_up(tmp_path):
    code = "import os\ndef score(prompt, answer, expected): return os._exit(1) if expected == 'die' else 1"
    deadly = [Sample("p", "a", "die")]
    with process(tmp_path, code, "own.py:score") as rewards:
        for _ in range(DEATHS):
            assert rewards.score(deadly).troubles["own.py:score"].kind == "ended"
            assert rewards.score(SAMPLES).values["own.py:score"] == [1] * 4


def test_a_function_that_prints_megabytes_has_its_scores_and_is_named(tmp_path):
    code = "import os\ndef score(answer):\n    os.write(2, b'y' * 300_000)\n    print('x' * 1_000_000)\n    return 1\n"
    with process(tmp_path, code) as rewards:
        scores = rewards.score(SAMPLES)
    assert scores.values["own.py:score"] == [1] * 4
    assert scores.troubles["own.py:score"].sentence.startswith("printed 4.0 million characters")


def test_a_function_that_always_gives_none_is_named(tmp_path):
    with process(tmp_path, "def score(answer): len(answer)") as rewards:
        scores = rewards.score(SAMPLES)
    assert scores.troubles["own.py:score"].kind == "none"


@table(
    ("code", "message"),
    [
        ("def other(answer): return 1", "own.py has no function score; its functions are: good, other"),
        ("x =", "own.py, line 3: SyntaxError"),
        ("import nothing_of_this_name", "own.py, line 3: ModuleNotFoundError"),
        ("def score(a, b): return 1", "own.py: score(a, b) is not a reward; write f(prompt, answer, expected)"),
        ("async def score(answer): return 1", "is async"),
        ("def score(completions, ids): return 1", "score needs ids; the columns of the rows are: n, prompt"),
        ("def score(completions): return [1]", "score returned 1 scores for 4 answers"),
        ("import os; os._exit(5)", "while its file was read: ended its process (exit code 5)"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, code, message):
    with RewardProcess(parse_rewards("own.py:score, exact_match"), {"own.py": GOOD + code}, tmp_path) as rewards:
        scores = rewards.score(SAMPLES)
    assert scores.values == {"own.py:score": [None] * 4, "exact_match": [0, 0, 1, 0]}
    assert message in scores.troubles["own.py:score"].sentence


@pytest.mark.skipif(not LINUX, reason="only Linux filters system calls")
def test_the_kernel_refuses_what_python_does_not_see(tmp_path):
    calls = ["socket(2, 1, 0)", "fork()", f"open(b'{tmp_path}/written', 0o102, 0o644)", "kill(parent, 0)"]
    calls += [f"unlink(b'{tmp_path}/kept')", "syscall(ctypes.c_long(435), 0, 0)", "prlimit(parent, 7, limit, None)"]
    code = "import ctypes, os\nlibc, parent, limit = ctypes.CDLL(None), os.getppid(), (ctypes.c_ulong * 2)(9, 9)\n"
    code += "".join(f"def call{i}(answer): return libc.{call}\n" for i, call in enumerate(calls))
    (tmp_path / "kept").touch()
    names = [f"own.py:call{index}" for index in range(len(calls))]
    with process(tmp_path, code, ", ".join(names)) as rewards:
        scores = rewards.score(SAMPLES[:1])
    assert {name: scores.values[name] for name in names} == {name: [-1] for name in names}
    assert (tmp_path / "kept").exists()


ATTACKS = {
    "a signal by a pipe": "pipe(ends); libc.fcntl(ends[0], 8, parent)",  # F_SETOWN
    "another signal than SIGIO": "pipe(ends); libc.fcntl(ends[0], 10, 9)",  # F_SETSIG
    "a file by its handle": "open_by_handle_at(-1, handle, 2)",
    "priority": "setpriority(0, parent, 1)",
    "scheduler": "sched_setscheduler(parent, 0, handle)",
    "affinity": "sched_setaffinity(parent, 8, mask)",
    "shared memory": "shmget(0x1234, 4096, 0o1600)",
    "semaphores": "semget(0x1234, 1, 0o1600)",
    "queue": "msgget(0x1234, 0o1600)",
    "POSIX queue": "mq_open(b'/lathe', 0o102, 0o600, None)",
    "file in memory": "memfd_create(b'x', 0)",
    "namespace": "unshare(0x20000)",
    "trace": "ptrace(16, parent, None, None)",
    "session": "setsid()",
    "process": "vfork()",
    "program": "execve(b'/bin/true', None, None)",
    "file descriptor of another": "pidfd_open(parent, 0)",
    "death signal": "prctl(1, 0, 0, 0, 0)",
    "core": "prctl(4, 1, 0, 0, 0)",
    "terminal": "ioctl(0, 0x5412, b'x')",
    "events": "inotify_init1(0)",
    "lock in memory": "mlock(handle, 1)",
    "mode of the folder": "chmod(b'FOLDER', 0o777)",
    "times of a file": "utimensat(-100, b'FOLDER/kept', None, 0)",
}


@pytest.mark.skipif(not LINUX, reason="only Linux filters system calls")
def test_no_call_of_an_attack_is_made(tmp_path):
    code = "import ctypes, os\nlibc, parent = ctypes.CDLL(None, use_errno=True), os.getppid()\n"
    code += "ends, handle, mask = (ctypes.c_int * 2)(), ctypes.create_string_buffer(256), (ctypes.c_ulong * 2)(1)\n"
    for index, call in enumerate(ATTACKS.values()):
        code += f"def call{index}(answer):\n    ctypes.set_errno(0)\n    libc.{call}\n    return ctypes.get_errno()\n"
    (tmp_path / "kept").touch()
    rewards = [Reward(f"own.py:call{index}") for index in range(len(ATTACKS))]
    with RewardProcess(rewards, {"own.py": code.replace("FOLDER", str(tmp_path))}, tmp_path / "rewards") as process:
        scores = process.score(SAMPLES[:1])
    assert not scores.troubles
    made = {
        attack: scores.values[f"own.py:call{index}"]
        for index, attack in enumerate(ATTACKS)
        if scores.values[f"own.py:call{index}"] not in ([errno.EPERM], [errno.ENOSYS])
    }
    assert made == {}


@pytest.mark.skipif(not LINUX, reason="only Linux has Landlock")
def test_a_reward_reads_its_own_folder_and_libraries_and_no_other_file(tmp_path, monkeypatch):
    if not landlock.version(ctypes.CDLL(None, use_errno=True)):
        pytest.skip("this kernel has no Landlock")
    monkeypatch.setenv("LATHE_SECRET_KEY", "of the parent")
    (tmp_path / "lathe.db").write_text("data of others")
    files = tmp_path / "rewards"
    places = [
        f"{tmp_path}/lathe.db",
        str(tmp_path),
        "/etc/passwd",
        "/root",
        f"/proc/{os.getpid()}/environ",
        "/proc",
        str(ROOT),
        "/",
    ]
    places += ["/", str(Path.home()), f"{files}/../lathe.db", "/proc/self/root/etc/passwd"]
    code = "import json, os\nlibrary = os.path.dirname(json.__file__)\n"
    code += "def read(path): return len(os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read())\n"
    code += f"def own(answer): return read({str(files / 'own.py')!r}) > 0 and read(library) > 0\n"
    for index, place in enumerate(places):
        code += f"def read{index}(answer): return read({place!r})\n"
    rewards = [Reward("own.py:own"), *(Reward(f"own.py:read{index}") for index in range(len(places)))]
    with RewardProcess(rewards, {"own.py": code}, files) as process:
        scores = process.score(SAMPLES[:1])
    assert scores.values.pop("own.py:own") == [1]
    read = {place: scores.values[f"own.py:read{index}"] for index, place in enumerate(places)}
    assert read == {place: [None] for place in places}
    assert {trouble.kind for trouble in scores.troubles.values()} == {"refused"}


PARENT = """
import sys
from pathlib import Path
from training.rewards import reward_process
from training.rewards.reward_process import RewardProcess
from training.rewards.rewards import parse_rewards
from training.rewards.sample import Sample
code = {"own.py": "def score(answer):\\n    while True: pass"}
with RewardProcess(parse_rewards("own.py:score"), code, Path(sys.argv[1]), seconds_per_batch=10_000) as rewards:
    rewards.score([Sample("p", "a", "e")])
"""


@pytest.mark.skipif(not LINUX, reason="the kernel of Linux ends the process with its parent")
def test_a_killed_run_leaves_no_process_behind(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], cwd=ROOT)
    (child,) = eventually(lambda: psutil.Process(parent.pid).children())
    eventually(lambda: child.cpu_times().user > 0.5)
    parent.kill()
    parent.wait()
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.skipif(not LINUX, reason="the kernel of Linux ends the process with its parent")
def test_no_process_is_left(tmp_path):
    before = set(psutil.Process(os.getpid()).children())
    with process(tmp_path, "def score(answer): return 1") as rewards:
        rewards.score(SAMPLES)
        (child,) = set(psutil.Process(os.getpid()).children()) - before
    assert not child.is_running()
