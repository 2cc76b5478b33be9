"""A configuration becomes the command that trains it."""

from pathlib import Path
from typing import Any

import pytest

from training.config.run_config import RunConfig
from worker.supervision.launcher import Node, launch, preview


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d"} | values)


def test_zero_on_cpu_does_not_set_the_flag_that_disables_deepspeed() -> None:
    launched = launch(config(strategy="zero2", num_processes=2), Path("/r"), ["h/cpu"], cpu_count=2)
    assert "--use_deepspeed" in launched.argv and "--cpu" not in launched.argv
    assert launched.env["DS_ACCELERATOR"] == "cpu"
    assert "ACCELERATE_USE_CPU" not in launched.env


def test_fsdp_configures_host_memory_before_the_ranks_join() -> None:
    launched = launch(config(strategy="fsdp", num_processes=2, offload_param="cpu"), Path("/r"), ["h/cpu"], cpu_count=2)
    assert "--use_fsdp" in launched.argv and launched.argv[launched.argv.index("--fsdp_version") + 1] == "2"
    assert launched.argv[launched.argv.index("--fsdp_offload_params") + 1] == "true"


def test_only_leased_gpus_are_visible() -> None:
    launched = launch(config(strategy="ddp", num_processes=2), Path("/r"), ["h/cuda:1", "h/cuda:3"])
    assert launched.env["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert "DS_ACCELERATOR" not in launched.env


def test_cpu_threads_are_divided_among_processes() -> None:
    launched = launch(config(strategy="ddp", num_processes=2), Path("/r"), ["h/cpu"], cpu_count=8)
    assert (launched.env["OMP_NUM_THREADS"], launched.env["OMP_WAIT_POLICY"]) == ("4", "PASSIVE")


def test_the_launch_command_runs_the_module_with_the_run_folder() -> None:
    assert launch(config(), Path("/r"), ["h/cpu"]).argv[-3:] == ["--module", "training.train", "/r"]


def test_the_preview_equals_the_command() -> None:
    shown = preview(config(strategy="zero3", num_processes=4)).replace("\\\n", "").split()
    launched = launch(config(strategy="zero3", num_processes=4), Path("/r"), ["h/cuda:0"]).argv
    assert shown[:2] == ["accelerate", "launch"]
    assert shown[2:-1] == launched[3:-1]


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp"])
def test_each_machine_of_several_gets_its_rank_and_the_address_of_the_first(strategy: str) -> None:
    several = config(strategy=strategy, num_processes=8, num_machines=2)
    first, second = (
        launch(several, Path("/r"), ["h/cpu"], cpu_count=8, node=Node(rank, "10.0.0.1", 29500)) for rank in (0, 1)
    )
    words = second.argv
    given = {name: words[place + 1] for place, name in enumerate(words[:-1]) if name.startswith("--")}
    assert given["--main_process_ip"] == "10.0.0.1" and given["--main_process_port"] == "29500"
    assert (given["--machine_rank"], given["--num_machines"]) == ("1", "2")
    assert [word for word in first.argv if word not in words] == ["0"]
    assert first.env["OMP_NUM_THREADS"] == "2", "each machine's cores are shared by its own processes"
    # Otherwise accelerate would start DeepSpeed by pdsh over ssh.
    assert ("--deepspeed_multinode_launcher" in words) == strategy.startswith("zero")
