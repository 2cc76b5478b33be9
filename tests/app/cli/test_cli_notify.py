"""`lathe notify`."""

from commands import answer, lathe
from receivers import hooks


def test_a_webhook_is_added_tested_listed_and_removed(home):
    with hooks() as receiver:
        added = answer("notify", "add", receiver.url, "--event", "failed")
        assert (added["events"], added["kind"]) == (["failed"], "webhook")
        assert lathe("notify", "test", added["id"]).stdout == "Delivered.\n"
        receiver.statuses.append(500)
        failed = lathe("notify", "test", added["id"])
        assert failed.exit_code == 1 and "status 500" in failed.stdout
        listed = lathe("notify", "list").stdout
    assert added["id"] in listed and "given up" in listed and "verysecretpart" not in listed
    answer("notify", "remove", added["id"])
    assert answer("notify", "list")["channels"] == []


def test_an_empty_list_shows_how_to_add_one(home):
    assert "lathe notify add URL" in lathe("notify", "list").stdout


def test_what_cannot_be_used_is_named(home):
    [problem] = answer("notify", "add", "ftp://host", exit_code=1)["error"]
    assert problem["field"] == "address" and "neither a URL nor an e-mail address" in problem["message"]
    [problem] = answer("notify", "test", "nothing", exit_code=1)["error"]
    assert (problem["field"], problem["value"]) == ("channel", "nothing")
