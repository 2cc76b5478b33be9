"""The container files hold together: what they name exists, what should be closed is closed, no secret is in them."""

import importlib.util
import json
import re
import tomllib

import pytest
from deploy_files import COMPOSE, OURS, ROOT, SERVICES, commands, environment, stages, variables

from app.cli import main
from worker.settings import Settings


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


PYPROJECT = tomllib.loads(read("pyproject.toml"))
PACKAGES = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
LATHE_VARIABLES = {f"LATHE_{name.upper()}" for name in Settings.model_fields}
SECRET = re.compile(r"PASSWORD|TOKEN|SECRET|AUTH")
DOTENV = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", read(".env.example"), re.MULTILINE))


def test_only_the_web_server_publishes_a_port_and_on_the_loopback_address_unless_told_otherwise():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["web"]
    assert [port.split("}:", 1)[0] for port in published["web"]] == ["${LATHE_BIND:-127.0.0.1"]


def test_database_and_queue_are_on_a_network_without_a_way_out():
    assert COMPOSE["networks"]["inner"]["internal"] is True
    assert [SERVICES[name]["networks"] for name in ("postgres", "valkey", "migrate")] == [["inner"]] * 3


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_that_stays_has_a_health_check_and_comes_back_after_a_crash(service):
    definition = SERVICES[service]
    if definition["restart"] == "no":
        assert definition["healthcheck"] == {"disable": True}
        return
    assert definition["restart"] == "unless-stopped"
    assert "healthcheck" in definition or stages()[definition["build"]["target"]].health_check


@pytest.mark.parametrize("command", [command for service in OURS for command in commands(service)], ids=" ".join)
def test_every_command_names_a_program_and_a_module_that_exist(command):
    match command:
        case ["lathe", subcommand, *flags]:
            assert PYPROJECT["project"]["scripts"]["lathe"] == "app.cli:main"
            assert {flag for option in main.commands[subcommand].params for flag in option.opts} >= set(flags)
        case ["python", "-m", module]:
            assert importlib.util.find_spec(module) is not None
        case ["python", "-c", source]:
            compile(source, "health check", "exec")
        case ["celery", "--app", module, *_]:
            assert importlib.util.find_spec(module) is not None
        case _:
            pytest.fail(f"nothing is known of the program {command[0]}")


def test_every_path_that_is_copied_exists_and_reaches_the_build():
    kept = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    lines = [rest for stage in stages().values() for rest in stage.all("COPY") if "--from" not in rest]
    copied = {path for line in lines for path in line.split()[:-1]}
    assert copied == kept
    assert [path for path in copied if not (ROOT / path).exists()] == []


def test_the_build_copies_every_package_that_the_wheel_is_made_of():
    copied = {rest.split()[0] for rest in stages()["source"].all("COPY")}
    assert copied >= PACKAGES
    for name in ("web", "worker"):
        made = next(rest for rest in stages()[name].all("RUN") if "mkdir" in rest)
        assert set(re.search(r"mkdir ([\w ]+?) &&", made)[1].split()) == PACKAGES


def test_every_variable_of_ours_is_a_setting_and_is_described():
    given = {name for service in OURS for name in SERVICES[service]["environment"]}
    given |= {name for stage in stages().values() for name in stage.environment if name.startswith("LATHE_")}
    assert given <= LATHE_VARIABLES
    described = set(re.findall(r"^\| `(LATHE_\w+)` \|", read("docs/deploy.md"), re.MULTILINE))
    assert described == LATHE_VARIABLES


def test_every_variable_that_compose_asks_for_is_in_the_example_and_the_other_way_round():
    assert {name for name, _, _ in variables(COMPOSE)} == set(DOTENV)


def test_no_secret_is_written_down_and_compose_refuses_to_start_without_passwords_and_token():
    assert [name for name, value in DOTENV.items() if SECRET.search(name) and value] == []
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            assert not SECRET.search(name) or str(value).startswith("${")
    required = {name for name, operator, _ in variables(COMPOSE) if operator == "?"}
    assert required == {"POSTGRES_PASSWORD", "VALKEY_PASSWORD", "LATHE_TOKEN"}
    assert all(operator == "?" for name, operator, _ in variables(COMPOSE) if name in required)


def test_the_hub_token_reaches_the_worker_alone():
    holders = [name for name, service in SERVICES.items() if "LATHE_HUB_TOKEN" in service.get("environment", {})]
    assert holders == ["worker"]


@pytest.mark.parametrize("service", OURS)
def test_database_and_queue_are_addressed_by_service_and_password(service):
    given = environment(service, {"POSTGRES_PASSWORD": "first", "VALKEY_PASSWORD": "second"})
    assert given["LATHE_DATABASE_URL"] == "postgresql://lathe:first@postgres:5432/lathe"
    assert given["LATHE_BROKER_URL"] == "redis://:second@valkey:6379/0"


def test_the_web_image_has_no_training_stack_and_the_worker_image_has_it_with_a_compiler_and_the_gpus():
    installs = {name: " ".join(rest for rest in stages()[name].all("RUN")) for name in ("web", "worker")}
    assert "[train]" not in installs["web"]
    assert 'install --no-cache-dir --constraint constraints.txt ".[train]"' in installs["worker"]
    assert "install --no-cache-dir --constraint constraints.txt ." in installs["web"]
    assert "g++" in installs["worker"].split()
    [device] = SERVICES["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "shm_size" in SERVICES["worker"]


@pytest.mark.parametrize("image", ["web", "worker"])
def test_an_image_runs_as_a_user_without_rights_who_owns_the_data_folder(image):
    stage = stages()[image]
    assert stage.last("USER") == "lathe"
    assert any("--uid 10001 lathe" in rest and "--owner lathe" in rest and "/data" in rest for rest in stage.all("RUN"))


def test_web_and_worker_share_the_data_folder_and_every_volume_is_declared():
    mounts = {name: [str(mount) for mount in service.get("volumes", [])] for name, service in SERVICES.items()}
    assert all(f"data:{environment(name, {})['LATHE_DATA_DIR']}" in mounts[name] for name in OURS)
    named = {mount.split(":")[0] for found in mounts.values() for mount in found if not mount.startswith("$")}
    assert named == set(COMPOSE["volumes"])


def test_nothing_starts_before_the_tables_are_up_to_date():
    for name in ("web", "worker"):
        assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert SERVICES["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}


def test_the_queue_keeps_its_messages_on_disk_and_evicts_none():
    command = json.dumps(SERVICES["valkey"]["command"])
    assert '"--appendonly", "yes"' in command
    assert '"--maxmemory-policy", "noeviction"' in command
    assert '"--requirepass", "${VALKEY_PASSWORD:?' in command
