"""What a server process (LATHE_SERVER) adds to commands: address, token, retries, and files that are sent and downloaded."""

import io
import json
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from commands import answer, lathe
from environment import use
from forked_server import server
from played_run import model_folder
from prepared import copied
from sqlmodel import update

from app.cli.client import Client, connect
from training.run_folder.derived import GgufType
from worker.runs.lineage import ROLES
from worker.store import database
from worker.store.tables import Dataset, Run

pytestmark = pytest.mark.slow
ROWS = "".join(json.dumps({"prompt": f"{n}", "completion": f"{n + 1}"}) + "\n" for n in range(20))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A prepared installation with a server process."""
    folder = tmp_path_factory.mktemp("remote")
    made = copied(folder / "home")
    names = {"FIRST": made.finished, "SECOND": made.failed, "WAITING": made.waiting, "DATA": made.dataset}
    model = model_folder(folder / "model")
    with server(made.home) as started:
        yield {
            "address": started.address,
            "home": made.home,
            "token": made.tokens["alice"],
            "model": str(model),
            **names,
        }
        database.dispose()


@pytest.fixture
def remote(served, monkeypatch, tmp_path):
    """Commands work on the server; the local data folder must not appear."""
    nowhere = tmp_path / "nowhere"
    use(monkeypatch, DATA_DIR=str(nowhere), SERVER=served["address"])
    yield
    assert not nowhere.exists()


def both(served, monkeypatch, *arguments):
    """The output of a command with the local database, and on the server."""
    words = [served.get(word, word) for word in arguments]
    use(monkeypatch, DATA_DIR=str(served["home"]))
    local = lathe(*words)
    database.dispose()
    use(monkeypatch, DATA_DIR=str(served["home"].parent / "nowhere"), SERVER=served["address"])
    remote = lathe(*words)
    assert (local.exit_code, remote.exit_code) == (0, 0), local.output + remote.output
    return local.stdout, remote.stdout


READING = [
    ("runs", "--json"),
    ("show", "FIRST"),
    ("compare", "FIRST", "SECOND", "--csv"),
    ("logs", "FIRST", "--follow"),
    ("forecast", "--model", "static/starter", "--gpu", "a100-80gb", "--gpus", "2"),
]


def test_a_command_prints_the_same(served, monkeypatch, subtests):
    for arguments in READING:
        with subtests.test(" ".join(arguments)):
            local, remote = both(served, monkeypatch, *arguments)
            if "--json" in arguments:
                local, remote = json.loads(local), json.loads(remote)
            assert local == remote
            assert local


def test_a_run_is_queued_with_a_file_of_this_machine_and_then_changed(served, remote, tmp_path):
    data = tmp_path / "mine.jsonl"
    data.write_text(ROWS.replace('"3"', '"three"'))
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({"model": served["model"], "data": str(data), "lora_r": 8}))
    queued = answer("run", config)
    assert (queued["status"], queued["owner"], queued["config"]["lora_r"]) == ("queued", "local", 8)
    assert answer("dataset", "show", queued["config"]["data"])["name"] == "mine.jsonl"
    assert answer("stop", queued["id"])["status"] == "stopped"
    assert answer("delete", queued["id"], "--yes")["done"] == [queued["id"]]


def test_a_sweep_is_planned_with_a_file_of_this_machine(served, remote, tmp_path):
    (tmp_path / "rows.jsonl").write_text(ROWS.replace('"5"', '"five"'))
    config = {"model": served["model"], "data": str(tmp_path / "rows.jsonl")}
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(yaml.safe_dump({"config": config, "space": {"lora_r": [4, 8]}}))
    plan = answer("sweep", sweep, "--dry-run")
    assert [run["problems"] for run in plan["runs"]] == [[], []]


def test_the_text_of_a_queued_run_names_its_page_on_the_server(served, remote):
    shown = lathe("run", "--model", served["model"], "--data", served["DATA"])
    assert shown.exit_code == 0, shown.output
    assert f"{served['address']}/run?id=" in shown.stdout
    lathe("stop", shown.stdout.split()[2].rstrip(":"))


def test_data_sets_are_sent_and_removed(remote, tmp_path):
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for number, file in enumerate(files):
        file.write_text(ROWS.replace('"7"', f'"{number} seven"'))
    single = lathe("dataset", "add", files[0], "--name", "seven.jsonl", "--json")
    stored = json.loads(single.stdout)
    assert (stored["name"], stored["rows"]) == ("seven.jsonl", 20)
    assert single.stderr.endswith(" sent.\n")
    together = answer("dataset", "add", *files)
    assert (together["name"], together["rows"]) == ("a.jsonl + b.jsonl", 40)
    for one in (stored, together):
        assert answer("dataset", "remove", one["id"], "--yes") == {"removed": one["id"]}


def test_a_file_with_errors_is_reported_as_by_the_local_command(served, monkeypatch, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(ROWS + "{broken\n" + '{"prompt": 5}\n')
    use(monkeypatch, DATA_DIR=str(served["home"]))
    local = answer("dataset", "add", bad, exit_code=1)
    database.dispose()
    use(monkeypatch, DATA_DIR=str(tmp_path / "nowhere"), SERVER=served["address"])
    result = lathe("dataset", "add", bad, "--json")
    assert (json.loads(result.stdout), result.exit_code) == (local, 1)


def test_errors_are_those_of_the_local_command(served, monkeypatch, tmp_path, subtests):
    for command in (
        "show zzzzzzzz",
        "stop zzzzzzzz",
        "runs --search loss<<1",
        f"dataset rows DATA --search {'x' * 300}",
    ):
        with subtests.test(command):
            use(monkeypatch, DATA_DIR=str(served["home"]))
            words = [served.get(word, word) for word in command.split()]
            local = lathe(*words)
            database.dispose()
            use(monkeypatch, DATA_DIR=str(tmp_path / "nowhere"), SERVER=served["address"])
            remote = lathe(*words)
            assert local.exit_code == 1
            assert (remote.stdout, remote.stderr, remote.exit_code) == (local.stdout, local.stderr, local.exit_code)


def test_a_run_is_archived_and_restored(served, remote, tmp_path):
    target = tmp_path / "sums.lathe.zip"
    assert answer("archive", served["FIRST"][:8], target) == {"file": str(target), "bytes": target.stat().st_size}
    restored = answer("restore", target)
    assert (restored["name"], restored["id"] == served["FIRST"]) == ("sums", False)
    answer("delete", restored["id"], "--yes")


def test_a_result_is_downloaded_or_its_absence_explained(served, remote, tmp_path):
    [problem] = answer("export", served["FIRST"], "-o", tmp_path / "a.zip", exit_code=1)["error"]
    assert "has no adapter here" in problem["message"]
    assert not list(tmp_path.glob("*.zip*"))
    folder = served["home"] / "runs" / served["FIRST"]

    with zipfile.ZipFile(folder / "adapter.zip", "w") as packed:
        packed.writestr("adapter_config.json", "{}")
    target = tmp_path / "a.zip"
    assert answer("export", served["FIRST"], "-o", target) == {"file": str(target), "bytes": target.stat().st_size}
    assert answer("export", served["FIRST"], "--to", tmp_path / "out")["folder"] == str(tmp_path / "out")
    assert (tmp_path / "out" / "adapter_config.json").read_text() == "{}"


def test_the_type_of_a_gguf_file_reaches_the_server(served, remote, tmp_path):
    (served["home"] / "runs" / served["FIRST"] / GgufType.Q8_0.file).write_bytes(b"GGUF")
    target = tmp_path / "a.gguf"
    assert answer("export", served["FIRST"], "-o", target, "--gguf", "--type", "Q8_0")["bytes"] == 4


def test_accounts_are_managed_on_the_server(remote):
    token = answer("user", "add", "dora", "--max-waiting", "3")["token"]
    assert len(token) > 20
    assert "dora" in [one["name"] for one in answer("user", "list")]
    assert answer("user", "rotate", "dora")["token"] != token
    assert answer("user", "remove", "dora")["removed"]


def test_a_user_changes_only_their_own_runs(served, remote, monkeypatch):
    monkeypatch.setenv("LATHE_TOKEN", served["token"])
    [problem] = answer("stop", served["WAITING"], exit_code=1)["error"]
    assert "belongs to the user who runs the server" in problem["message"]


def test_the_result_of_another_account_s_run_trains_on_nothing_that_is_not_shared(tmp_path, monkeypatch):
    """`lathe run --like` with a copy of the result."""
    made = copied(tmp_path / "home")
    use(monkeypatch, DATA_DIR=str(made.home))
    with database.write() as session:
        for table in (Run, Dataset):
            session.exec(update(table).values(owner="alice"))
        digest = session.get(Dataset, made.dataset).sha256
    settings = {"model": "static/starter", "data": made.dataset, "max_steps": 1}
    database.dispose()
    with server(made.home, VISIBILITY="own", CHECK_TEMPLATES="false") as started:
        use(monkeypatch, DATA_DIR=str(tmp_path / "nowhere"), SERVER=started.address)

        def as_(account, *command):
            monkeypatch.setenv("LATHE_TOKEN", made.tokens[account])
            return lathe(*command)

        def like(account, *options, **further):
            data = [{"role": ROLES["data"], "name": "rows.jsonl", "sha256": digest}]
            record = {"version": 1, "settings": settings | further, "model": {"local": False}, "data": data}
            (tmp_path / "lathe.json").write_text(json.dumps(record))
            return as_(account, "run", "--like", tmp_path, *options)

        refused = like("bob")
        assert refused.exit_code != 0 and digest[:16] in refused.stderr, refused.output
        assert as_("bob", "show", made.finished).stderr == as_("bob", "show", "no-such-run").stderr.replace(
            "no-such-run", made.finished
        )
        assert as_("alice", "share", "run", made.finished, "bob").exit_code == 0
        assert as_("bob", "show", made.finished).exit_code == 0
        assert like("bob").stderr == refused.stderr
        assert as_("alice", "share", "dataset", made.dataset, "bob").exit_code == 0
        assert like("bob").exit_code == 0
        adapter = like("bob", init_adapter=made.failed)
        assert adapter.exit_code != 0 and "is neither the folder of an adapter nor a run with one" in adapter.stderr
        assert like("alice").exit_code == 0


def test_a_wrong_token_is_named(remote, monkeypatch):
    monkeypatch.setenv("LATHE_TOKEN", "wrong" * 10)
    [problem] = answer("runs", exit_code=1)["error"]
    assert (problem["field"], problem["value"]) == ("LATHE_TOKEN", None)
    assert "not accepted" in problem["message"]


def test_a_server_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setenv("LATHE_SERVER", "http://127.0.0.1:9")
    [problem] = answer("runs", exit_code=1)["error"]
    assert (problem["field"], problem["value"]) == ("LATHE_SERVER", "http://127.0.0.1:9")
    assert "did not answer" in problem["message"]


def test_commands_of_the_machine_say_so(remote, subtests):
    for command in ("up", "web", "worker", "doctor", "token", "push RUN a/b", "verify RUN"):
        with subtests.test(command):
            [first, *_] = result = lathe(*command.split()).stderr.splitlines()
            assert "works on the machine of the installation only" in first, result


def test_an_address_that_is_none_is_refused(monkeypatch, subtests):
    for address in ("lathe.example", "ftp://a", "https://user:secret@a", "http://"):
        with subtests.test(address):
            monkeypatch.setenv("LATHE_SERVER", address)
            assert "is not the address of a server" in answer("runs", exit_code=1)["error"][0]["message"]


def test_a_token_is_not_sent_unencrypted_over_a_network(monkeypatch):
    monkeypatch.setenv("LATHE_SERVER", "http://lathe.example")
    monkeypatch.setenv("LATHE_TOKEN", "a" * 43)
    [problem] = answer("runs", exit_code=1)["error"]
    assert "unencrypted" in problem["message"]
    assert "LATHE_INSECURE=1" in problem["fix"]
    monkeypatch.setenv("LATHE_INSECURE", "1")
    assert connect() == Client("http://lathe.example", "a" * 43)


def test_a_run_is_followed_on_the_server(served, remote):
    from app.cli.runs.follow import follow, screen_for

    output = io.StringIO()
    assert follow(served["FIRST"], screen_for(output)) == "finished"
    assert "a note" in output.getvalue()


class Older(BaseHTTPRequestHandler):
    """A server that has none of our routes, or is none of Lathe; it loses the first answers to a new run."""

    lost, keys = 2, []

    def do_GET(self):
        if self.path.startswith("/api/queue"):
            body, status = b"<html>", 502
        else:
            error = {"field": "path", "value": self.path, "message": "is not part of the API.", "fix": ""}
            body, status = json.dumps({"error": error}).encode(), 404
        self.reply(status, body)

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        Older.keys.append(self.headers["Idempotency-Key"])
        if len(Older.keys) > Older.lost:
            self.reply(201, json.dumps({"id": "abcd", "name": "new"}).encode())

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(name="older")
def older_server(monkeypatch):
    with HTTPServer(("127.0.0.1", 0), Older) as older:
        thread = threading.Thread(target=older.serve_forever)
        thread.start()
        monkeypatch.setenv("LATHE_SERVER", f"http://127.0.0.1:{older.server_port}")
        yield
        older.shutdown()
        thread.join()


def test_a_server_of_another_version_or_none_of_lathe_is_named(older):
    assert "another version of Lathe" in answer("runs", exit_code=1)["error"][0]["message"]
    assert "status 502" in answer("queue", exit_code=1)["error"][0]["message"]


def test_a_run_is_sent_again_with_the_same_key_if_the_answer_was_lost(older):
    assert answer("run", "--model", "Qwen/Qwen3-0.6B", "--data", "0123456789abcdef")["id"] == "abcd"
    assert len(Older.keys) == 3
    assert len(set(Older.keys)) == 1
