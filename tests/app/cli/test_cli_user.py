"""`lathe user` and `lathe token`."""

import pytest
from commands import answer, lathe

from app.access.server_token import TOKEN_FILE, server_token
from training.config.run_config import RunConfig
from worker.settings import get_settings
from worker.store import accounts, database, runs


def of(token):
    with database.read() as session:
        account = accounts.of_token(session=session, token=token)
    return account and (account.name, account.admin)


def test_an_account_s_token_is_printed_once_and_grants_access(home):
    output = lathe("user", "add", "alice")
    token = output.stdout.strip()
    assert of(token) == ("alice", False)
    assert "shown only once" in output.stderr
    assert token not in lathe("user", "list").output


def test_an_admin_is_listed_as_one(home):
    assert of(answer("user", "add", "carol", "--admin")["token"]) == ("carol", True)
    assert [(item["name"], item["admin"]) for item in answer("user", "list")] == [("carol", True)]
    assert "carol  admin" in lathe("user", "list").stdout


def test_limits_are_given_changed_removed_and_listed(home):
    answer("user", "add", "alice", "--max-devices", "2", "--max-waiting", "20", "--max-disk", "200GB")
    assert "alice  user  0 of 2   0 of 20  0 of 186 GiB" in lathe("user", "list").stdout
    (listed,) = answer("user", "list")
    assert [listed[name] for name in ("devices", "max_devices", "waiting", "max_waiting")] == [0, 2, 0, 20]
    changed = answer("user", "limit", "alice", "--max-devices", "4", "--max-waiting", "none")
    assert (changed["max_devices"], changed["max_waiting"]) == (4, None)
    assert answer("user", "limit", "alice", "--max-disk", "1.5 TiB")["max_disk_bytes"] == 3 * 2**39
    assert "alice  user  0 of 4   0" in lathe("user", "limit", "alice", "--max-devices", "4").stdout


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "", "99999999999"])
def test_a_wrong_limit_is_reported_and_no_account_is_added(home, value):
    (error,) = answer("user", "add", "alice", "--max-devices", value, exit_code=1)["error"]
    assert (error["field"], str(error["value"]), "Give" in error["fix"]) == ("--max-devices", value, True)
    assert answer("user", "list") == []


@pytest.mark.parametrize("value", ["0GB", "-1GB", "big", "200", "200 gigs", "", "1e9", "99999PB"])
def test_a_wrong_size_is_reported(home, value):
    (error,) = answer("user", "add", "alice", "--max-disk", value, exit_code=1)["error"]
    assert (error["field"], "200GB" in error["fix"]) == ("--max-disk", True)


def test_a_limit_of_an_unknown_account_and_no_limit_at_all_are_reported(home):
    (error,) = answer("user", "limit", "nobody", "--max-devices", "2", exit_code=1)["error"]
    assert (error["field"], error["value"]) == ("NAME", "nobody")
    (error,) = answer("user", "limit", "nobody", exit_code=1)["error"]
    assert "--max-devices 2" in error["fix"]


def test_an_empty_list_of_accounts_shows_how_to_add_one(home):
    assert "lathe user add NAME" in lathe("user", "list").stdout
    assert answer("user", "list") == []


def test_rotating_and_removing_invalidate_the_token(home):
    first = answer("user", "add", "alice")["token"]
    second = answer("user", "rotate", "alice")["token"]
    assert (of(first), of(second)) == (None, ("alice", False))
    answer("user", "remove", "alice")
    assert of(second) is None


def test_a_run_is_shared_with_accounts_until_it_is_shared_with_nobody(home):
    lathe("user", "add", "alice")
    with database.write() as session:
        run_id = runs.create(session=session, config=RunConfig(model="m", data="d"), dataset_id=None).id
    assert lathe("share", "run", run_id).stdout == "Shared with nobody.\n"
    assert lathe("share", "run", run_id[:8], "alice").stdout == "Shared with alice.\n"
    assert answer("share", "run", run_id) == {"users": ["alice"]}
    assert lathe("share", "run", run_id, "*").stdout == "Shared with all users.\n"
    assert "'bbo'" in answer("share", "run", run_id, "bbo", exit_code=1)["error"][0]["message"]
    assert lathe("share", "run", run_id, "--nobody").stdout == "Shared with nobody.\n"


@pytest.mark.parametrize("name", ["local", "", "a b", "-x", "x" * 65, "a/b", "a\n"])
def test_an_invalid_name_is_reported(home, name):
    result = lathe("user", "add", "--", name)
    assert result.exit_code == 1
    assert f"NAME (given: {name!r})" in result.stderr


@pytest.mark.parametrize(("command", "fix"), [("add", "lathe user rotate alice"), ("rotate", "lathe user list")])
def test_a_used_or_unknown_name_is_reported_with_a_fix(home, command, fix):
    lathe("user", "add", "alice")
    (error,) = answer("user", command, "alice" if command == "add" else "nobody", exit_code=1)["error"]
    assert (error["field"], fix in error["fix"]) == ("NAME", True)


def test_the_server_s_token_is_created_shown_and_rotated(bare_home):
    shown = answer("token")
    assert shown["token"] == (bare_home / TOKEN_FILE).read_text().strip()
    assert shown["address"] == f"http://127.0.0.1:7860/?token={shown['token']}"
    changed = answer("token", "--rotate")["token"]
    assert changed != shown["token"]
    assert server_token(get_settings()) == changed


def test_a_token_from_the_environment_cannot_be_rotated(bare_home, monkeypatch):
    monkeypatch.setenv("LATHE_TOKEN", "0123456789abcdef0123456789abcdef")
    get_settings.cache_clear()
    (error,) = answer("token", "--rotate", exit_code=1)["error"]
    assert error["field"] == "LATHE_TOKEN"
