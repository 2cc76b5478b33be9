"""The installation's settings."""

import stat
from pathlib import Path

import pytest

from worker import private
from worker import settings as module
from worker.settings import MAX_SOCKET_PATH, ROOT, Settings, SettingsError, get_settings


@pytest.fixture
def environment(bare_home, monkeypatch):
    """Sets LATHE_ variables and reads the settings anew."""

    def read(**variables: str) -> Settings:
        for name, value in variables.items():
            monkeypatch.setenv(f"LATHE_{name}", value)
        get_settings.cache_clear()
        return get_settings()

    return read


def test_a_checkout_keeps_its_data_beside_its_code(bare_home, monkeypatch):
    monkeypatch.delenv("LATHE_DATA_DIR")
    assert Settings().data_dir == ROOT / "data"


def test_an_installed_package_keeps_its_data_in_the_user_s_folder(bare_home, monkeypatch, tmp_path):
    monkeypatch.delenv("LATHE_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(module, "ROOT", tmp_path / "site-packages")
    assert Settings().data_dir == tmp_path / ".local/share/lathe"


def test_it_listens_on_loopback_and_starts_its_own_servers_unless_told_otherwise(environment, bare_home):
    settings = environment()
    assert (settings.host, settings.port) == ("127.0.0.1", 7860)
    assert settings.sqlalchemy_url == f"sqlite:///{bare_home}/lathe.db"
    assert settings.celery_broker_url == f"redis+socket://{bare_home}/broker.sock"


def test_an_empty_variable_means_the_default(environment):
    settings = environment(PORT="", DATABASE_URL="", HUB_TOKEN="")
    assert (settings.port, settings.database_url, settings.hub_token) == (7860, "", None)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_way_to_write_a_postgresql_address_is_taken(environment, scheme):
    settings = environment(DATABASE_URL=f"{scheme}://user:pw@db:5432/lathe")
    assert settings.sqlalchemy_url == "postgresql+psycopg://user:pw@db:5432/lathe"


def test_a_relative_data_folder_is_made_absolute(environment, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert environment(DATA_DIR="here").data_dir == tmp_path / "here"


def test_the_folders_are_made_closed_to_other_users(environment):
    settings = environment()
    settings.make_folders()
    for folder in (settings.data_dir, settings.runs_dir, settings.datasets_dir, settings.uploads_dir):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_data_folder_that_cannot_be_made_is_named(environment, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"LATHE_DATA_DIR \(given: .*/file/x\): Not a directory. Give a folder"):
        environment(DATA_DIR=str(tmp_path / "file/x")).make_folders()


def test_a_socket_s_path_that_would_be_too_long_moves_to_a_private_folder(environment, tmp_path):
    settings = environment(DATA_DIR=str(tmp_path / ("long" * 30)))
    path = settings.socket_path
    try:
        assert len(bytes(path)) <= MAX_SOCKET_PATH
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert settings.socket_path == path
        assert environment(DATA_DIR=str(tmp_path / ("other" * 30))).socket_path.parent != path.parent
        path.parent.chmod(0o755)
        with pytest.raises(SettingsError, match="not yours alone"):
            _ = settings.socket_path
    finally:
        path.parent.rmdir()
        environment(DATA_DIR=str(tmp_path / ("other" * 30))).socket_path.parent.rmdir()


def test_a_variable_that_cannot_be_read_is_named_with_its_value_and_what_it_is_for(environment):
    with pytest.raises(SettingsError) as caught:
        environment(PORT="http", MAX_ATTEMPTS="0")
    port, attempts = str(caught.value).splitlines()
    assert port.startswith("LATHE_PORT (given: 'http'): input should be a valid integer")
    assert port.endswith("Port the web server listens on.")
    assert attempts.startswith("LATHE_MAX_ATTEMPTS (given: '0'): input should be greater than or equal to 1")


def test_a_lease_that_ends_before_it_is_renewed_is_refused(environment):
    with pytest.raises(SettingsError, match="LATHE_LEASE_SECONDS: lease_seconds must be at least three times"):
        environment(LEASE_SECONDS="10", RENEW_SECONDS="5")


def test_the_hub_token_does_not_show_when_settings_are_printed(environment):
    settings = environment(HUB_TOKEN="hf_secret")
    assert "hf_secret" not in repr(settings)
    assert settings.hub_token is not None and settings.hub_token.get_secret_value() == "hf_secret"


def test_every_setting_is_explained():
    assert all(field.description and field.description.endswith(".") for field in Settings.model_fields.values())


def test_the_root_holds_the_packages():
    assert Path(ROOT, "worker", "settings.py").is_file()


def test_a_data_folder_that_is_open_to_others_is_closed_at_the_start(environment, bare_home):
    """As versions before made it, and as `mkdir` and SQLite make theirs."""
    settings = environment()
    for name in ("runs", "datasets"):
        (bare_home / name).mkdir(mode=0o755, parents=True)
    for name in ("lathe.db", "lathe.db-wal", "token"):
        (bare_home / name).touch(mode=0o644)
    bare_home.chmod(0o755)
    private.close(settings)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (bare_home, bare_home / "runs")} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in bare_home.iterdir() if path.is_file()} == {0o600}


def test_a_link_in_the_data_folder_leads_to_no_change_elsewhere(environment, bare_home, tmp_path):
    settings = environment()
    settings.make_folders()
    (tmp_path / "elsewhere").touch(mode=0o644)
    (bare_home / "lathe.db").symlink_to(tmp_path / "elsewhere")
    private.close(settings)
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o644
