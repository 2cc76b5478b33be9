"""A forged archive reads no file of the server and breaks no list."""

import copy
import io
import json
import os
import struct
from zipfile import ZIP_BZIP2, ZIP_LZMA, ZipFile

import pytest
from played_run import PlayedRun, model_folder
from web import account, client

from training.redaction import LONGEST_LINE
from worker.archives import restore, run_archive
from worker.runs import requests
from worker.store import database, runs
from worker.store.tables import Status


@pytest.fixture
def api(home):
    return client()


@pytest.fixture
def alice(home):
    return account("alice")


@pytest.fixture
def archive(home):
    """The members of the archive of a stopped run."""
    run = PlayedRun("forged", data="0123456789abcdef").claim()
    run.end(Status.STOPPED)
    with ZipFile(io.BytesIO(b"".join(run_archive.packed(run.id)))) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    with database.write() as session:
        runs.delete(session=session, run_id=run.id)
    return members


def forged(archive, config=None, **values):
    """The archive as a file, with other values in the run's row."""
    row = json.loads(archive["lathe-run.json"])
    row["run"] |= values
    row["run"]["config"] |= config or {}
    target = io.BytesIO()
    with ZipFile(target, "w") as packed:
        for name, content in (archive | {"lathe-run.json": json.dumps(row)}).items():
            packed.writestr(name, content)
    return target.getvalue()


def restored(api, content, **options):
    return api.post("/api/archives", content=content, **options)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "PRIVATE"),
        ("data", "/etc/passwd"),
        ("validation_data", "/etc/passwd"),
        ("chat_template", "/etc/passwd"),
        ("deepspeed_config", "/etc/passwd"),
        ("deepspeed_config", '{"zero_optimization": {"stage": 3, "offload_param": {"nvme_path": "/tmp"}}}'),
        ("nvme_path", "/tmp"),
        ("push_to_hub", "alice/stolen"),
    ],
)
@pytest.mark.parametrize("place", ["config", "stepped_down"])
def test_what_an_account_may_not_name_is_refused_when_a_restored_run_is_used(
    api, alice, archive, tmp_path, field, value, place
):
    if value == "PRIVATE":
        value = str(model_folder(tmp_path / "private"))
    change = {"config": {field: value}} if place == "config" else {"stepped_down": {field: value}}
    answer = restored(api, forged(archive, **change), headers=alice)
    if answer.status_code == 422:
        return  # refused at once
    run_id = answer.json()["id"]
    refused = api.post(f"/api/runs/{run_id}/resume", headers=alice)
    assert (refused.status_code, [problem["field"] for problem in refused.json()["problems"]]) == (422, [field])
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
    assert run.status is Status.STOPPED
    with pytest.raises(requests.ConfigError):
        requests.admitted(run)
    served = api.post("/v1/chat/completions", headers=alice, json={"model": f"{run_id}:base", "messages": []})
    assert served.status_code == 404, served.text
    evaluated = api.post(f"/api/runs/{run_id}/evaluations", headers=alice, json={"data": "none", "metrics": ["f1"]})
    assert [problem["field"] for problem in evaluated.json()["problems"]] == [field]


@pytest.mark.parametrize(
    "values",
    [
        {"best_loss": float("inf")},
        {"best_loss": float("nan")},
        {"created_at": float("inf")},
        {"created_at": 1e300},
        {"created_at": -1},
        {"step": 2**70},
        {"name": "\ud800"},
        {"name": "x" * 5000},
        {"tags": ["x" * 500]},
        {"tags": [["x"]]},
        {"summary": {"train_seconds": float("inf")}},
        {"summary": {"train_seconds": "long"}},
        {"summary": {"memory": 5}},
        {"summary": {"answers": [1]}},
        {"forecast": {"allocated_bytes": "much"}},
        {"forecast": {}},
        {"plan": {"target_modules": 5}},
        {"error": {"message": 5}},
        {"plan": json.loads("[" * 400 + "]" * 400)},
        {"stepped_down": {"model": 5}},
        {"id": "../../x"},
        {"status": "running"},
    ],
    ids=str,
)
def test_a_row_that_lists_cannot_show_is_refused_and_every_list_stays_whole(api, archive, values):
    known = PlayedRun("known").claim().end()
    answer = restored(api, forged(archive, **values))
    assert answer.status_code == 422, answer.text
    assert "archive" in answer.json()["error"]["fix"]
    for path in ("/api/runs", f"/api/runs/{known.id}", "/v1/models", "/api/runs.csv"):
        assert api.get(path).status_code == 200


ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "/models/base", "target_modules": r".*\.(q|v)_proj", "r": 8}


@pytest.mark.parametrize(
    ("method", "name", "values"),
    [
        ("full", "model/adapter_config.json", {}),  # transformers would load the model that it names
        ("full", "adapter/adapter_config.json", {}),
        ("lora", "model/adapter_config.json", {}),
        ("lora", "adapter/more/adapter_config.json", {}),
        ("lora", "adapter/adapter_config.json", {"peft_type": "XLORA", "adapters": {"0": "/etc"}}),
        ("lora", "adapter/adapter_config.json", {"corda_config": {"cache_file": "/etc/passwd"}}),
        ("lora", "adapter/adapter_config.json", {"lora_ga_config": {"cache_file": "secret"}}),
        ("lora", "adapter/adapter_config.json", {"megatron_config": {}, "megatron_core": "antigravity"}),
        ("prompt_tuning", "adapter/adapter_config.json", {"peft_type": "PREFIX_TUNING"}),
    ],
    ids=str,
)
def test_an_adapter_that_names_what_is_not_in_the_archive_is_refused(api, archive, method, name, values):
    files = {f"files/{name}": json.dumps(ADAPTER | values)}
    answer = restored(api, forged(archive | files, config={"method": method}))
    assert answer.status_code == 422 and "has an adapter" in answer.json()["error"]["message"], answer.text
    fine = {"files/adapter/adapter_config.json": json.dumps(ADAPTER)}
    assert restored(api, forged(archive | fine)).status_code == 201


def test_an_archive_that_becomes_many_times_as_large_is_refused(api, archive):
    target = io.BytesIO()
    with ZipFile(target, "w", compression=8) as packed:
        for name, content in archive.items():
            packed.writestr(name, content)
        packed.writestr("files/adapter/adapter_model.safetensors", b"\0" * 100 * 2**20)
    problem = restored(api, target.getvalue()).json()["error"]
    assert "times as large" in problem["message"]


def test_an_archive_whose_files_share_their_bytes_is_refused(api, archive):
    """Each of 200 names stands for the same packed megabyte."""
    target = io.BytesIO()
    with ZipFile(target, "w", compression=8) as packed:
        for name, content in archive.items():
            packed.writestr(name, content)
        packed.writestr("files/adapter/000.json", b"".join(os.urandom(20) + bytes(1000) for _ in range(1000)))
        for number in range(1, 200):
            shared = copy.copy(packed.getinfo("files/adapter/000.json"))
            shared.filename = shared.orig_filename = f"files/adapter/{number:03}.json"
            packed.filelist.append(shared)
    problem = restored(api, target.getvalue()).json()["error"]
    assert "times as large" in problem["message"]


@pytest.mark.parametrize("method", [ZIP_BZIP2, ZIP_LZMA])
def test_an_archive_in_a_form_that_may_need_gigabytes_is_refused(api, archive, method):
    target = io.BytesIO()
    with ZipFile(target, "w", compression=method) as packed:
        for name, content in archive.items():
            packed.writestr(name, content)
    assert "another method than Deflate" in restored(api, target.getvalue()).json()["error"]["message"]


@pytest.mark.parametrize("name", ["adapter/" + "x" * 300 + ".json", "adapter/" + "d/" * 3000 + "x.json"])
def test_names_that_no_disk_has_are_refused(api, archive, name):
    answer = restored(api, forged(archive | {f"files/{name}": b"{}"}))
    assert answer.status_code == 422, answer.text


def test_a_file_and_a_folder_of_one_name_are_refused(api, archive):
    both = {"files/adapter/a.json": b"{}", "files/adapter/a.json/b.json": b"{}"}
    answer = restored(api, forged(archive | both))
    assert answer.status_code == 422, answer.text
    assert "one name" in answer.json()["error"]["message"]


def test_the_owner_of_the_server_resumes_a_restored_run_that_names_a_file(api, archive, tmp_path):
    rows, model = tmp_path / "rows.jsonl", model_folder(tmp_path / "model")
    rows.write_text('{"prompt": "a", "completion": "b"}\n' * 20)
    run_id = restored(api, forged(archive, config={"model": str(model), "data": str(rows)})).json()["id"]
    assert api.post(f"/api/runs/{run_id}/resume").status_code == 200


NESTED = b"[" * 200_000
WIDE = b'{"a":[' + b"1," * 2_000_000 + b"1]}"


@pytest.mark.parametrize("content", [NESTED, b'{"chat_template": ' + NESTED, WIDE, b"[]", b"null", b"\xff"])
@pytest.mark.parametrize(
    "name",
    [
        "answers.jsonl",
        "lineage.json",
        *(f"adapter/{name}.json" for name in ("tokenizer_config", "lathe", "generation_config")),
    ],
)
def test_a_file_that_is_nested_deeply_or_has_millions_of_values_breaks_no_page(api, archive, name, content):
    row = json.loads(archive["lathe-run.json"])["run"]
    files = {"files/adapter/adapter_config.json": b'{"peft_type": "LORA"}', f"files/{name}": content}
    answer = restored(api, forged(archive | files, status="finished", summary=row.get("summary") or {}))
    assert answer.status_code in (201, 422), answer.text
    if answer.status_code == 201:
        run_id = answer.json()["id"]
        shown = [f"/api/runs/{run_id}{part}" for part in ("", "/outputs", "/answers.jsonl", "/suites")]
        for path in (*shown, f"/run?id={run_id}", f"/api/compare?ids={run_id}", "/v1/models"):
            found = api.get(path, headers={"Accept": "text/html"} if path.startswith("/run?") else {})
            assert found.status_code < 500, (path, found.text[:300])


def test_a_row_that_is_too_long_is_refused_unread(api, archive):
    row = '{"x": "' + "a" * 9_000_000 + '", ' + archive["lathe-run.json"].decode().strip()[1:]
    problem = restored(api, packed(archive | {"lathe-run.json": row})).json()["error"]
    assert "has a lathe-run.json above 8.0 MiB" in problem["message"]
    for name in ("evaluations.jsonl", "attempts.jsonl"):
        problem = restored(api, packed(archive | {name: " " * 9_000_000})).json()["error"]
        assert f"has a {name} above 8.0 MiB" in problem["message"]


def test_texts_of_a_run_s_row_are_shortened_and_others_are_refused(api, archive):
    """Every list of runs reads the rows: thirty of 6 MB took 300 MB and three seconds of everybody."""
    error = {"message": "it broke", "traceback": "a" * 100_000 + "b" * 100_000}
    run_id = restored(api, packed(with_row(archive, error=error))).json()["id"]
    shown = api.get(f"/api/runs/{run_id}").json()["error"]["traceback"]
    assert shown == "a" * 8000 + " ... " + "b" * 8000
    small = {"message": "it broke", "traceback": "c" * 20_000}
    run_id = restored(api, packed(with_row(archive, error=small))).json()["id"]
    assert api.get(f"/api/runs/{run_id}").json()["error"]["traceback"] == "c" * 20_000
    wide = {f"k{number}": 1.0 for number in range(20_000)}
    problem = restored(api, packed(with_row(archive, summary=wide))).json()["error"]
    assert "characters, which no run has" in problem["message"]


def with_row(archive, **values):
    row = json.loads(archive["lathe-run.json"])
    row["run"] |= values
    return archive | {"lathe-run.json": json.dumps(row)}


def test_more_attempts_and_metrics_than_are_read_at_once_are_refused(api, archive, monkeypatch):
    monkeypatch.setattr(restore, "_MOST_ATTEMPTS", 2)
    monkeypatch.setattr(restore, "_MOST_SERIES", 2)
    attempt = {"number": 1, "host": "h", "devices": [], "started_at": 1.0}
    metric = {"name": "loss", "rank": -1, "step": 1, "time": 1.0, "value": 1.0}
    for name, rows in {
        "attempts.jsonl": [attempt | {"number": number} for number in range(1, 4)],
        "metrics.jsonl": [metric | {"rank": rank} for rank in range(3)],
    }.items():
        few, many = ("".join(json.dumps(row) + "\n" for row in part) for part in (rows[:2], rows))
        assert restored(api, packed(archive | {name: few})).status_code == 201
        problem = restored(api, packed(archive | {name: many})).json()["error"]
        assert f"has more rows in {name} than a run has" in problem["message"]


def test_texts_of_rows_are_as_long_as_training_reports_them(api, archive):
    line = {"attempt": 1, "time": 1.0, "text": "a" * 900_000}
    event = {"attempt": 1, "time": 1.0, "kind": "note", "message": "b" * 900_000}
    rows = {"log.jsonl": json.dumps(line) + "\n", "events.jsonl": json.dumps(event) + "\n"}
    run_id = restored(api, packed(archive | rows)).json()["id"]
    (shown,) = api.get(f"/api/runs/{run_id}/log").json()["lines"]
    assert shown["text"] == "a" * LONGEST_LINE + " ... (900000 characters)"
    (shown,) = api.get(f"/api/runs/{run_id}/events").json()["events"]
    assert shown["message"] == "b" * 64_000


def packed(members):
    target = io.BytesIO()
    with ZipFile(target, "w", compression=8) as packing:
        for name, content in members.items():
            packing.writestr(name, content)
    return target.getvalue()


@pytest.mark.parametrize("path", ["/api/archives", "/api/datasets?name=rows.zip"])
def test_a_list_of_many_files_is_refused_unread(api, path):
    entries = b"".join(
        struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, *[0] * 8, 7, *[0] * 6) + b"%07d" % number
        for number in range(100_000)
    )
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 100_000, 100_000, len(entries), 4)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(entries) + 4, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, len(entries), 2**32 - 1, 0)
    answer = api.post(path, content=b"PK\3\4" + entries + record + locator + end)
    assert answer.status_code == 422
    assert "its list of files has more than 4,194,304 bytes" in answer.text


@pytest.mark.parametrize("method", [ZIP_BZIP2, ZIP_LZMA])
def test_a_data_set_in_a_form_that_may_need_gigabytes_is_refused(api, method):
    target = io.BytesIO()
    with ZipFile(target, "w", compression=method) as packing:
        packing.writestr("rows.jsonl", '{"prompt": "a", "completion": "b"}\n' * 10)
    answer = api.post("/api/datasets?name=rows.zip", content=target.getvalue())
    assert answer.status_code == 422 and "another method than Deflate" in answer.text
