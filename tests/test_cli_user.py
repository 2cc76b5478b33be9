"""`lathe user` and `lathe token`."""

import pytest
from commands import answer, lathe

from app.tokens import TOKEN_FILE, server_token
from worker import accounts, database
from worker.settings import get_settings


def of(token):
    with database.read() as session:
        account = accounts.of_token(session=session, token=token)
    return account and (account.name, account.admin)


def test_an_account_s_token_is_printed_once_and_lets_in(home):
    told = lathe("user", "add", "alice")
    token = told.stdout.strip()
    assert of(token) == ("alice", False)
    assert "not shown again" in told.stderr
    assert token not in lathe("user", "list").output


def test_an_admin_is_listed_as_one(home):
    assert of(answer("user", "add", "carol", "--admin")["token"]) == ("carol", True)
    assert [(one["name"], one["admin"]) for one in answer("user", "list")] == [("carol", True)]
    assert "carol  admin" in lathe("user", "list").stdout


def test_a_list_without_accounts_says_how_to_make_one(home):
    assert "lathe user add NAME" in lathe("user", "list").stdout
    assert answer("user", "list") == []


def test_rotating_and_removing_end_the_token_before(home):
    first = answer("user", "add", "alice")["token"]
    second = answer("user", "rotate", "alice")["token"]
    assert (of(first), of(second)) == (None, ("alice", False))
    answer("user", "remove", "alice")
    assert of(second) is None


@pytest.mark.parametrize("name", ["local", "", "a b", "-x", "x" * 65, "a/b", "a\n"])
def test_a_name_that_cannot_be_used_is_named(home, name):
    result = lathe("user", "add", "--", name)
    assert result.exit_code == 1
    assert f"NAME (given: {name!r})" in result.stderr


@pytest.mark.parametrize(("command", "fix"), [("add", "lathe user rotate alice"), ("rotate", "lathe user list")])
def test_a_name_in_use_or_unknown_says_what_to_do(home, command, fix):
    lathe("user", "add", "alice")
    (told,) = answer("user", command, "alice" if command == "add" else "nobody", exit_code=1)["error"]
    assert (told["field"], fix in told["fix"]) == ("NAME", True)


def test_the_server_s_token_is_made_shown_and_changed(bare_home):
    shown = answer("token")
    assert shown["token"] == (bare_home / TOKEN_FILE).read_text().strip()
    assert shown["address"] == f"http://127.0.0.1:7860/?token={shown['token']}"
    changed = answer("token", "--rotate")["token"]
    assert changed != shown["token"]
    assert server_token(get_settings()) == changed


def test_a_token_of_the_environment_is_not_changed_here(bare_home, monkeypatch):
    monkeypatch.setenv("LATHE_TOKEN", "0123456789abcdef0123456789abcdef")
    get_settings.cache_clear()
    (told,) = answer("token", "--rotate", exit_code=1)["error"]
    assert told["field"] == "LATHE_TOKEN"
