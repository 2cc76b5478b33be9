"""Where the processes of a run listen, and how they end."""

from ipaddress import ip_address

import psutil
import pytest
import without_ipv4
from paths import PROGRAMS
from tiny import make_data, make_model
from trainer_process import start, start_held

from training.run_folder.events import Metrics


@pytest.mark.train
@pytest.mark.parametrize("strategy", ["ddp", "zero2", pytest.param("fsdp", marks=pytest.mark.nightly)])
def test_no_process_of_a_run_on_one_machine_can_be_reached_from_another(tmp_path, strategy):
    run = start_held(
        tmp_path / "run",
        make_model(tmp_path / "model"),
        make_data(tmp_path / "rows.jsonl"),
        2,
        strategy=strategy,
        num_processes=2,
    )
    run.wait_for(lambda event: isinstance(event, Metrics) and event.step == 2)
    assert run.process
    launcher = psutil.Process(run.process.pid)
    sockets = [
        socket
        for process in (launcher, *launcher.children(recursive=True))
        for socket in process.net_connections("tcp")
    ]
    listening = [socket.laddr for socket in sockets if socket.status == psutil.CONN_LISTEN]
    (run.run_dir / "go").touch()
    assert run.finish() == 0
    assert listening and all(ip_address(address.ip).is_loopback for address in listening)


@pytest.mark.train
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_error_that_a_user_can_fix_ends_the_log_without_tracebacks(tmp_path, ranks):
    rows = make_data(tmp_path / "rows.jsonl", rows=4)
    strategy = {"strategy": "ddp", "num_processes": ranks} if ranks > 1 else {}
    run = start(tmp_path / "run", make_model(tmp_path / "model"), rows, eval_split=4, **strategy)
    assert run.finish() == 1 and run.failure.expected
    log = (tmp_path / "run" / "output.log").read_text()
    assert f"Error: {run.failure.message}" in log and "Traceback" not in log


@pytest.mark.train
def test_ranks_of_a_machine_without_ipv4_meet_by_ipv6(tmp_path):
    ranks = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"]
    shared = ["--mixed_precision", "no", "--dynamo_backend", "no"]
    done = without_ipv4.python("-m", "training.ranks.launch", *ranks, *shared, PROGRAMS / "sum_of_ranks.py", tmp_path)
    assert done.stdout.splitlines() == ["::1 sum 3"] * 2, done.stderr
