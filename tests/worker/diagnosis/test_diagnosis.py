"""Diagnosis of logs: a real log for every cause; ranks, memory and unknown causes."""

import random
import re

import pytest
from paths import TESTS
from subtest_table import table

from training.config.fields import settings
from training.config.run_config import RunConfig
from training.model_info.config_json import Dimensions
from worker.diagnosis.causes import BY_SUBJECT, CAUSES
from worker.diagnosis.diagnosis import NO_FAILURE, UNKNOWN, diagnose

LOGS = TESTS / "logs"
MT0_XXL = Dimensions(heads=64, hidden=4096, intermediate=10240, vocabulary=250112)
LLAMA_7B = Dimensions(heads=32, hidden=4096, intermediate=11008, vocabulary=32000, positions=4096)


def log(name):
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


def asked(gib, *, code="", unit="GiB"):
    """A log of torch 2 with an out-of-memory error of this size in a line of code."""
    return f"""Traceback (most recent call last):
  File "/opt/train/modeling.py", line 7, in forward
    {code}
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {gib} {unit}. GPU 0 has a total capacity of 79.10 GiB \
of which 1.00 GiB is free."""


@table("cause", [cause.name for cause in CAUSES])
def test_every_cause_is_found_in_its_log(cause):
    diagnosis = diagnose(log(cause))
    assert diagnosis.cause == cause, diagnosis.explanation
    assert diagnosis.confidence >= 0.5
    assert diagnosis.fix
    lines = log(cause).split("\n")
    assert diagnosis.evidence
    assert all(item.shown.strip()[:80] in lines[item.number - 1] for item in diagnosis.evidence)


def test_every_log_has_a_cause_and_causes_are_unique():
    names = [cause.name for cause in CAUSES]
    assert len(set(names)) == len(names)
    assert sorted(path.stem for path in LOGS.glob("*.log")) == sorted(names)
    assert len(names) >= 40
    assert all(BY_SUBJECT.values())


@table("cause", [cause for cause in CAUSES if cause.changes])
def test_every_fix_changes_existing_settings(cause):
    assert cause.changes.keys() <= settings().keys()
    RunConfig(model="m", data="d", **cause.changes)


def test_the_first_failed_rank_is_the_cause_and_not_ranks_that_lost_its_connection():
    text = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/train/train.py", line 9, in main
[rank1]: Traceback (most recent call last):
[rank0]:     dist.all_reduce(loss)
[rank1]:   File "/opt/train/train.py", line 7, in main
[rank1]:     rows = open("/data/part-1.jsonl")
[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711
[rank1]: FileNotFoundError: [Errno 2] No such file or directory: '/data/part-1.jsonl'
"""
    diagnosis = diagnose(text)
    assert (diagnosis.cause, diagnosis.first_failed_rank) == ("file_missing", 1)
    assert "/data/part-1.jsonl" in diagnosis.explanation


def test_the_error_of_the_rank_that_the_launcher_reports_first_counts():
    text = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/train/train.py", line 9, in main
[rank0]: ModuleNotFoundError: No module named 'left_half'
[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/train/train.py", line 9, in main
[rank1]: PermissionError: [Errno 13] Permission denied: '/scratch/out'
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
"""
    diagnosis = diagnose(text)
    assert (diagnosis.cause, diagnosis.first_failed_rank) == ("permission_denied", 1)


@table("mark", ["[rank{}]: ", "[default{}]:", "[default{}]:[rank{}]: ", "[rank: {}] ", "[1,{}]<stderr>:"])
def test_line_prefixes_of_launchers_give_the_rank(mark):
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in main',
        "    go()",
        "OSError: the moon is full",
    ]
    diagnosis = diagnose("\n".join(mark.format(3, 3) + line for line in lines))
    assert (diagnosis.cause, diagnosis.first_failed_rank) == (UNKNOWN, 3)
    assert "the moon is full" in diagnosis.explanation


def test_line_prefixes_of_srun_give_the_rank():
    diagnosis = diagnose(
        "\n".join(f"{rank}: ValueError: no row" if rank == 2 else f"{rank}: ready" for rank in range(4))
    )
    assert diagnosis.first_failed_rank == 2


def test_an_unknown_cause_shows_the_error_of_the_rank_and_not_of_the_launcher():
    text = """Traceback (most recent call last):
  File "/opt/train/train.py", line 12, in step
    raise MoonError("the moon is full")
moon.MoonError: the moon is full
Traceback (most recent call last):
  File "/opt/venv/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "site-packages/accelerate/commands/launch.py", line 1165, in launch_command
    simple_launcher(args)
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.
"""
    diagnosis = diagnose(text)
    assert (diagnosis.cause, diagnosis.confidence) == (UNKNOWN, 0.0)
    assert "No known cause matches this log" in diagnosis.explanation
    assert [item.text for item in diagnosis.evidence] == ["moon.MoonError: the moon is full"]
    assert "in step, train.py" in diagnosis.explanation


def test_an_error_after_which_training_continued_is_not_the_cause():
    text = "ModuleNotFoundError: No module named 'wandb'\n" + "{'loss': 1.5, 'epoch': 0.1}\n" * 50
    ended = text + asked("2.00")
    assert diagnose(ended).cause == "cuda_out_of_memory"
    assert diagnose(text).cause == NO_FAILURE


def test_a_few_overflows_do_not_hide_an_unknown_error():
    text = (
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
        + asked("").partition("torch.")[0]
    )
    diagnosis = diagnose(text + "moon.MoonError: the moon is full")
    assert diagnosis.cause == UNKNOWN


def test_an_empty_log_is_reported_as_empty():
    assert diagnose("\n \r\n").title == "The log is empty."


def test_colors_progress_bars_and_long_lines_do_not_hide_the_error():
    bar = "\r".join(f" {n}%|███ | {n}/100 [00:01<00:02]" for n in range(100))
    text = (
        f"{bar}\x1b[31mtorch.OutOfMemoryError\x1b[0m: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        + "x" * 1_000_000
    )
    diagnosis = diagnose(text)
    assert (diagnosis.cause, diagnosis.inferred["bytes_requested"]) == ("cuda_out_of_memory", 2 * 2**30)


def test_secrets_in_the_evidence_are_redacted():
    diagnosis = diagnose(
        "PermissionError: [Errno 13] Permission denied: 'https://me:hunter2hunter2@hub' token=hf_Abcdefghijklmnop"
    )
    assert "hunter2" not in str(diagnosis.document())
    assert "hf_Abcdefgh" not in str(diagnosis.document())


def test_an_attention_matrix_gives_the_sequence_length_if_model_and_batch_are_known():
    diagnosis = diagnose(log("cuda_out_of_memory"), dimensions=MT0_XXL)  # the batch is in the log
    assert (diagnosis.inferred["batch_size"], diagnosis.inferred["sequence_length"]) == (4, 3610)
    assert diagnosis.inferred["bytes_requested"] == pytest.approx(12.43 * 2**30, abs=1)
    assert "4 x 64 x 3,610 x 3,610 x 4 bytes" in diagnosis.explanation
    assert (diagnosis.first_failed_rank, diagnosis.inferred["gpu"], diagnosis.inferred["phase"]) == (2, 2, "forward")


@table(
    ("gib", "code", "batch", "length", "tensor"),
    [
        (8.00, "attn_weights = softmax(attn_weights, dim=-1, dtype=torch.float32)", 4, 4096, "attention matrix"),
        (0.98, "logits = self.lm_head(hidden_states).float()", 4, 2048, "logits"),
        (1.34, "return self.down_proj(self.act_fn(self.gate_proj(x))).float()", 8, 4096, "MLP activation"),
    ],
)
def test_the_line_of_code_identifies_the_tensor(gib, code, batch, length, tensor):
    inferred = diagnose(asked(f"{gib:.2f}", code=code), dimensions=LLAMA_7B, micro_batch=batch).inferred
    assert (inferred["tensor"], inferred["batch_size"], inferred["sequence_length"]) == (tensor, batch, length)


def test_an_unknown_batch_size_gives_all_matching_candidates():
    diagnosis = diagnose(asked("12.43", code="scores = softmax(scores.float(), dim=-1)"), dimensions=MT0_XXL)
    fitting = [(item["batch_size"], item["sequence_length"]) for item in diagnosis.inferred["candidates"]]
    assert (1, 7220) in fitting
    assert (4, 3610) in fitting
    assert "--micro-batch" in diagnosis.explanation


def test_shapes_in_the_traceback_identify_the_tensor_without_a_model():
    code = "probs = softmax(scores)  # scores of torch.Size([2, 16, 8192, 8192])"
    inferred = diagnose(asked("8.00", code=code)).inferred
    assert (inferred["batch_size"], inferred["sequence_length"]) == (2, 8192)


def test_a_length_beyond_the_models_positions_is_the_least_likely_candidate():
    inferred = diagnose(asked("8.00", code="softmax(attn, dtype=torch.float32)"), dimensions=LLAMA_7B).inferred
    assert inferred["sequence_length"] <= 4096


@table(
    ("message", "requested", "free"),
    [
        (
            "(GPU 0; 31.75 GiB total capacity; 28.11 GiB already allocated; 1.01 GiB free; 29.46 GiB reserved in total by PyTorch)",
            2,
            1.01,
        ),
        (
            "GPU 0 has a total capacty of 23.65 GiB of which 1.66 GiB is free. Process 7 has 21.99 GiB memory in use.",
            2,
            1.66,
        ),
        (
            "GPU 0 has a total capacity of 79.10 GiB of which 512.00 MiB is free. Of the allocated memory 1 GiB is allocated",
            2,
            0.5,
        ),
    ],
)
def test_messages_of_old_and_new_torch_versions_are_recognized(message, requested, free):
    inferred = diagnose(f"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. {message}").inferred
    assert inferred["bytes_requested"] == requested * 2**30
    assert inferred["free_bytes"] == pytest.approx(free * 2**30, abs=1)


def test_memory_of_another_process_on_the_gpu_is_reported():
    message = (
        "GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free. Process 4711 has 40.00 GiB memory in use. "
    )
    message += "Including non-PyTorch memory, this process has 38.00 GiB memory in use."
    diagnosis = diagnose(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {message}")
    assert diagnosis.fix[0].startswith("Process 4711 uses 40.0 GiB")


def test_fragmentation_is_distinguished_from_memory_in_use():
    message = "31.00 GiB is allocated by PyTorch, and 9.00 GiB is reserved by PyTorch but unallocated."
    diagnosis = diagnose(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {message}")
    assert "expandable_segments" in diagnosis.fix[0]


OFFLOADED = {"strategy": "zero3", "offload_optimizer": "cpu", "offload_param": "cpu"}


@table(
    ("code", "phase", "changes"),
    [
        ("AutoModelForCausalLM.from_pretrained(folder).cuda()", "loading", OFFLOADED),
        ("state['exp_avg'] = torch.zeros_like(p)", "optimizer", {"strategy": "zero2", "offload_optimizer": "cpu"}),
        ("loss.backward()", "backward", {"micro_batch_size": 4, "gradient_accumulation_steps": 6}),
    ],
)
def test_the_fix_depends_on_the_phase_and_keeps_the_global_batch(code, phase, changes):
    text = asked("2.00", code=code).replace("in forward", "in main")
    diagnosis = diagnose(text, config={"micro_batch_size": 8, "gradient_accumulation_steps": 3, "method": "lora"})
    assert (diagnosis.inferred["phase"], diagnosis.changes) == (phase, changes)


def test_a_setting_that_is_already_set_is_not_proposed():
    assert diagnose(log("target_modules_missing")).changes == {"target_modules": "all-linear"}
    assert diagnose(log("target_modules_missing"), config={"target_modules": "all-linear"}).changes == {}


WAITED = (
    "[rank{0}]:[E1 x.cpp:6] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=1, "
    "NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
)
LAST = (
    "[rank{0}]:[E1 x.cpp:6] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Timeout at NCCL work: 5, last enqueued NCCL work: {1}, "
    "last completed NCCL work: 4.\n"
)


@table(
    ("text", "rank"),
    [
        ("world_size=3\n" + "".join(WAITED.format(rank, 5, "ALLREDUCE") for rank in (0, 2)), 1),
        (
            "".join(
                WAITED.format(rank, 5, "ALLREDUCE") + LAST.format(rank, 5 if rank == 2 else 9) for rank in range(4)
            ),
            2,
        ),
        ("".join(WAITED.format(rank, 4 if rank == 0 else 5, "ALLREDUCE") for rank in range(3)), 0),
        ("".join(WAITED.format(rank, 5, "BROADCAST" if rank == 1 else "ALLREDUCE") for rank in range(3)), 1),
    ],
)
def test_a_collective_timeout_names_the_rank_that_hung(text, rank):
    diagnosis = diagnose(text)
    assert (diagnosis.cause, diagnosis.first_failed_rank) == ("nccl_timeout", rank)
    assert f"rank {rank}" in diagnosis.explanation


def test_a_timeout_in_which_all_ranks_wait_names_no_rank():
    diagnosis = diagnose("".join(WAITED.format(rank, 5, "ALLREDUCE") for rank in range(2)))
    assert "does not show which rank" in diagnosis.explanation


def test_no_text_crashes_the_diagnosis():
    draw = random.Random(5)
    pieces = [line for path in LOGS.glob("*.log") for line in path.read_text(encoding="utf-8").splitlines()]
    for _ in range(60):
        lines = draw.choices(pieces, k=draw.randrange(1, 60))
        cut = [
            "".join(draw.sample(line, len(line))) if draw.random() < 0.2 else line[draw.randrange(len(line) + 1) :]
            for line in lines
        ]
        if draw.random() < 0.5:
            cut = [re.sub(r"\d+", lambda _: "9" * draw.choice([1, 5, 30, 400]), line) for line in cut]
        noise = "".join(chr(draw.randrange(0x110000)) for _ in range(40))
        diagnosis = diagnose("\n".join([*cut, noise]), dimensions=LLAMA_7B)
        assert 0 <= diagnosis.confidence <= 1
        assert diagnosis.document()["cause"]


def test_a_traceback_formatted_by_rich_is_parsed():
    text = """╭───────────────────── Traceback (most recent call last) ─────────────────────╮
│ /opt/train/train.py:9 in main                                                │
│    8 │   model = load()                                                      │
│ ❱  9 │   trainer.train()                                                     │
│ site-packages/transformers/models/llama/modeling_llama.py:381 in forward     │
│   380 │   │   scores = scores + mask                                         │
│ ❱ 381 │   │   attn_weights = softmax(scores, dim=-1, dtype=torch.float32)    │
╰──────────────────────────────────────────────────────────────────────────────╯
OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB (GPU 3; 79.10 GiB total capacity; 70.00 GiB already
allocated; 2.00 GiB free; 71.00 GiB reserved in total by PyTorch)"""
    inferred = diagnose(text, dimensions=LLAMA_7B, micro_batch=4).inferred
    assert (inferred["tensor"], inferred["sequence_length"], inferred["gpu"]) == ("attention matrix", 4096, 3)
    assert inferred["allocated_bytes"] == 70 * 2**30


def test_timestamps_of_a_log_collector_do_not_hide_rank_or_frames():
    text = "\n".join(
        f"2026-01-02T10:00:00.123Z stderr F [rank2]: {line}"
        for line in asked("8.00", code="logits.float()").splitlines()
    )
    diagnosis = diagnose(text)
    assert (diagnosis.cause, diagnosis.first_failed_rank, diagnosis.inferred["phase"]) == (
        "cuda_out_of_memory",
        2,
        "forward",
    )


def test_a_warning_is_not_mistaken_for_the_error_after_it():
    text = "cuda/__init__.py:174: UserWarning: The NVIDIA driver on your system is too old (found version 11040)."
    diagnosis = diagnose(f"{text}\nTraceback (most recent call last):\n  File 'a.py'\nmoon.MoonError: the moon is full")
    assert diagnosis.cause == UNKNOWN
    assert "the moon is full" in diagnosis.explanation


def ended(error, *, before="", code="go()"):
    """A log with this text before a traceback of this exception."""
    return (
        f'{before}Traceback (most recent call last):\n  File "/opt/train/a.py", line 1, in main\n    {code}\n{error}\n'
    )


@table(
    ("call", "argument", "fix"),
    [
        ("SFTConfig", "max_seq_length", "max_length"),
        ("DPOTrainer", "tokenizer", "processing_class"),
        ("TrainingArguments", "evaluation_strategy", "eval_strategy"),
        ("MyTrainer.compute_loss", "num_items_in_batch", "num_items_in_batch=None"),
    ],
)
def test_an_argument_that_was_renamed_gives_its_new_name(call, argument, fix):
    call = call if "." in call else f"{call}.__init__"
    diagnosis = diagnose(ended(f"TypeError: {call}() got an unexpected keyword argument '{argument}'"))
    assert diagnosis.cause == "package_incompatible"
    assert fix in diagnosis.fix[0]


def test_the_end_of_torchruns_summary_gives_the_killed_rank():
    text = log("host_out_of_memory").partition("Failures:")[2]
    diagnosis = diagnose(text)
    assert (diagnosis.cause, diagnosis.first_failed_rank) == ("host_out_of_memory", 1)
    assert "exitcode  : -9" in diagnosis.evidence[0].text


def test_a_kill_by_lathe_is_no_kill_by_the_system_and_hides_no_error():
    text = log("killed_by_lathe")
    diagnosis = diagnose(text)
    assert (diagnosis.cause, diagnosis.first_failed_rank) == ("killed_by_lathe", 1)
    assert "Rank 1 had ended in the phase training without a report" in diagnosis.explanation
    of_another = diagnose(text.replace("to processes 23596", "to processes 23595"))
    assert of_another.cause == "host_out_of_memory"
    failed = text.replace("Lathe sent", ended("moon.MoonError: the moon is full") + "\nLathe sent")
    assert "moon.MoonError" in diagnose(failed).explanation


def test_the_batch_size_is_read_from_a_command_in_the_log():
    command = "cmd = ['python', 'train.py', '--per_device_train_batch_size', '2', '--fp16']\n"
    diagnosis = diagnose(command + asked("8.00", code="softmax(scores, dtype=torch.float32)"), dimensions=LLAMA_7B)
    assert diagnosis.inferred["batch_size"] == 2


def test_a_traceback_in_torchruns_summary_is_parsed():
    text = """Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_10:00:00
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 42)
  traceback : Traceback (most recent call last):
    File "site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 346, in wrapper
      return f(*args, **kwargs)
    File "/opt/train/train.py", line 10, in main
      raise MoonError("the moon is full")
  moon.MoonError: the moon is full

============================================================
"""
    diagnosis = diagnose(text)
    assert (diagnosis.cause, diagnosis.first_failed_rank) == (UNKNOWN, 3)
    assert "moon.MoonError: the moon is full (in main, train.py)" in diagnosis.explanation
