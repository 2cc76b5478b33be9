"""Where the processes of a run listen."""

from ipaddress import ip_address

import psutil
import pytest
from tiny import make_data, make_model
from trainer_process import start_held

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
