"""The installation's settings."""

import re
import stat
from pathlib import Path

import pytest

from worker import private_folder
from worker import settings as module
from worker.settings import MAX_SOCKET_PATH, ROOT, Settings, SettingsError, get_settings


@pytest.fixture
def environment(bare_home, monkeypatch):
    """Sets LATHE_ variables and reads the settings again."""

    def read(**variables: str) -> Settings:
        for name, value in variables.items():
            monkeypatch.setenv(f"LATHE_{name}", value)
        get_settings.cache_clear()
        return get_settings()

    return read


def test_a_checkout_uses_the_data_folder_in_the_checkout(bare_home, monkeypatch):
    monkeypatch.delenv("LATHE_DATA_DIR")
    assert Settings().data_dir == ROOT / "data"


def test_an_installed_package_uses_a_data_folder_in_the_home_folder(bare_home, monkeypatch, tmp_path):
    monkeypatch.delenv("LATHE_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(module, "ROOT", tmp_path / "site-packages")
    assert Settings().data_dir == tmp_path / ".local/share/lathe"


def test_the_defaults_are_loopback_and_embedded_servers(environment, bare_home):
    settings = environment()
    assert (settings.host, settings.port) == ("127.0.0.1", 7860)
    assert settings.sqlalchemy_url == f"sqlite:///{bare_home}/lathe.db"
    assert settings.celery_broker_url == f"redis+socket://{bare_home}/broker.sock"


def test_an_empty_variable_means_the_default(environment):
    settings = environment(PORT="", DATABASE_URL="", HUB_TOKEN="")
    assert (settings.port, settings.database_url, settings.hub_token) == (7860, "", None)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_form_of_a_postgresql_url_is_accepted(environment, scheme):
    settings = environment(DATABASE_URL=f"{scheme}://user:pw@db:5432/lathe")
    assert settings.sqlalchemy_url == "postgresql+psycopg://user:pw@db:5432/lathe"


def test_a_relative_data_folder_is_made_absolute(environment, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert environment(DATA_DIR="here").data_dir == tmp_path / "here"


def test_new_folders_are_private(environment):
    settings = environment()
    settings.make_folders()
    for folder in (settings.data_dir, settings.runs_dir, settings.datasets_dir, settings.uploads_dir):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_data_folder_that_cannot_be_created_is_reported(environment, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        SettingsError,
        match=r"LATHE_DATA_DIR \(given: .*/file/x'\): cannot be created: Not a directory. Give a writable folder",
    ):
        environment(DATA_DIR=str(tmp_path / "file/x")).make_folders()


def test_a_long_socket_path_moves_to_a_private_folder(environment, tmp_path):
    settings = environment(DATA_DIR=str(tmp_path / ("long" * 30)))
    path = settings.socket_path
    try:
        assert len(bytes(path)) <= MAX_SOCKET_PATH
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert settings.socket_path == path
        assert environment(DATA_DIR=str(tmp_path / ("other" * 30))).socket_path.parent != path.parent
        path.parent.chmod(0o755)
        with pytest.raises(SettingsError, match="not private to you"):
            _ = settings.socket_path
    finally:
        path.parent.rmdir()
        environment(DATA_DIR=str(tmp_path / ("other" * 30))).socket_path.parent.rmdir()


def test_an_invalid_variable_is_reported_with_value_and_description(environment):
    with pytest.raises(SettingsError) as caught:
        environment(PORT="http", MAX_ATTEMPTS="0")
    port, attempts = str(caught.value).splitlines()
    assert port.startswith("LATHE_PORT (given: 'http'): input should be a valid integer")
    assert port.endswith("Port that the web server listens on.")
    assert attempts.startswith("LATHE_MAX_ATTEMPTS (given: '0'): input should be greater than or equal to 1")


def test_a_lease_shorter_than_three_renewals_is_refused(environment):
    with pytest.raises(SettingsError, match="LATHE_LEASE_SECONDS: lease_seconds must be at least three times"):
        environment(LEASE_SECONDS="10", RENEW_SECONDS="5")


def test_printed_settings_do_not_show_the_hub_token(environment):
    settings = environment(HUB_TOKEN="hf_secret")
    assert "hf_secret" not in repr(settings)
    assert settings.hub_token is not None and settings.hub_token.get_secret_value() == "hf_secret"


def test_every_setting_has_a_description():
    assert all(field.description and field.description.endswith(".") for field in Settings.model_fields.values())


def test_the_root_folder_contains_the_packages():
    assert Path(ROOT, "worker", "settings.py").is_file()


def test_a_data_folder_readable_by_others_becomes_private_at_the_start(environment, bare_home):
    """Older versions, `mkdir` and SQLite create such files."""
    settings = environment()
    for name in ("runs", "datasets"):
        (bare_home / name).mkdir(mode=0o755, parents=True)
    for name in ("lathe.db", "lathe.db-wal", "token"):
        (bare_home / name).touch(mode=0o644)
    bare_home.chmod(0o755)
    private_folder.close(settings)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (bare_home, bare_home / "runs")} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in bare_home.iterdir() if path.is_file()} == {0o600}


def test_a_symlink_in_the_data_folder_does_not_change_its_target(environment, bare_home, tmp_path):
    settings = environment()
    settings.make_folders()
    (tmp_path / "elsewhere").touch(mode=0o644)
    (bare_home / "lathe.db").symlink_to(tmp_path / "elsewhere")
    private_folder.close(settings)
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o644


def test_an_unknown_variable_is_named_with_the_nearest_known_one(environment, capsys):
    environment(DATA="/elsewhere", DATA_DIR="/data", SERVER="http://lathe", TEST_POSTGRES_URL="postgresql://x")
    module.name_unknown_variables()
    assert capsys.readouterr().err == "warning: LATHE_DATA: is not read by Lathe. Did you mean LATHE_DATA_DIR?\n"


def test_each_variable_in_the_code_is_known(environment, monkeypatch):
    """A new variable is a field of `Settings`, or one of `OTHERS`."""
    files = [file for folder in ("app", "worker", "training") for file in (ROOT / folder).rglob("*.py")]
    files += [ROOT / "Dockerfile", *ROOT.glob("docker-compose*.yml"), *ROOT.glob("docs/*.md")]
    named = {name for file in files for name in re.findall(r"\bLATHE_[A-Z_]*[A-Z]\b", file.read_text())}
    for name in named:
        monkeypatch.setenv(name, "x")
    assert len(named) > 50
    assert module.unknown_variables() == []
