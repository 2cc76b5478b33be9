"""A configuration becomes the command that trains it."""

from pathlib import Path
from typing import Any

from training.config import RunConfig
from worker.launcher import launch, preview


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d"} | values)


def test_zero_on_cpu_never_sets_the_flag_that_turns_deepspeed_off() -> None:
    made = launch(config(strategy="zero2", num_processes=2), Path("/r"), ["h/cpu"], cpu_count=2)
    assert "--use_deepspeed" in made.argv and "--cpu" not in made.argv
    assert made.env["DS_ACCELERATOR"] == "cpu"
    assert "ACCELERATE_USE_CPU" not in made.env


def test_fsdp_says_before_the_ranks_join_whether_host_memory_takes_part() -> None:
    made = launch(config(strategy="fsdp", num_processes=2, offload_param="cpu"), Path("/r"), ["h/cpu"], cpu_count=2)
    assert "--use_fsdp" in made.argv and made.argv[made.argv.index("--fsdp_version") + 1] == "2"
    assert made.argv[made.argv.index("--fsdp_offload_params") + 1] == "true"


def test_leased_gpus_are_the_only_ones_seen() -> None:
    made = launch(config(strategy="ddp", num_processes=2), Path("/r"), ["h/cuda:1", "h/cuda:3"])
    assert made.env["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert "DS_ACCELERATOR" not in made.env


def test_cpu_threads_are_shared_out_among_processes() -> None:
    made = launch(config(strategy="ddp", num_processes=2), Path("/r"), ["h/cpu"], cpu_count=8)
    assert made.env["OMP_NUM_THREADS"] == "4"


def test_the_program_is_a_module_and_the_folder_its_only_argument() -> None:
    assert launch(config(), Path("/r"), ["h/cpu"]).argv[-3:] == ["--module", "training.train", "/r"]


def test_the_preview_reads_as_the_command_does() -> None:
    shown = preview(config(strategy="zero3", num_processes=4)).replace("\\\n", "").split()
    made = launch(config(strategy="zero3", num_processes=4), Path("/r"), ["h/cuda:0"]).argv
    assert shown[:2] == ["accelerate", "launch"]
    assert shown[2:-1] == made[3:-1]
