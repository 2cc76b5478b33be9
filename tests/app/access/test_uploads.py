"""Handlers receive only uploaded files: they cannot read, probe or delete other files of the machine."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from web import account, application, client

from app.access.uploads import NotUploaded, check_paths, sign_of, uploaded_file
from worker.store.tables import LOCAL

FILE = {"_type": "gradio.FileData"}
PREDICT, JOIN = "/gradio_api/run/predict", "/gradio_api/queue/join"


@pytest.fixture
def upload(home):
    """An uploaded file, and its folder."""
    (path,) = client().post("/gradio_api/upload", files={"files": ("rows.jsonl", b'{"a": 1}\n')}).json()
    yield Path(path)
    Path(path).unlink(missing_ok=True)


def handlers():
    """Yields each handler with file inputs: its id, the number of its inputs, and the indices of the file inputs."""
    config = client().get("/config").json()
    kinds = {component["id"]: component["type"] for component in config["components"]}
    for item in config["dependencies"]:
        places = [place for place, number in enumerate(item["inputs"]) if kinds[number] in ("file", "uploadbutton")]
        if places:
            yield item["id"], len(item["inputs"]), places


def forged(tmp_path, folder):
    """Paths of existing files that an attacker could send."""
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"prompt": "secret", "completion": "secret"}\n')
    link, pipe, inner = folder / "link.jsonl", folder / "pipe", folder / "linked"
    if not link.is_symlink():
        link.symlink_to(secret)
        os.mkfifo(pipe)
        inner.symlink_to(tmp_path)
    named = ["/etc/passwd", "/dev/zero", "/proc/self/environ", secret, link, pipe, inner / secret.name, folder]
    return [*map(str, named), f"{folder}/../{folder.name}/../../secret.jsonl", "rows.jsonl", "", "http://127.0.0.1:1/x"]


@pytest.fixture
def names(tmp_path, upload):
    """The paths of `forged`, deleted afterwards."""
    folder = Path(application().state.uploads)
    yield forged(tmp_path, folder)
    for name in ("link.jsonl", "pipe", "linked"):
        (folder / name).unlink()


@pytest.mark.parametrize("route", [PREDICT, JOIN])
def test_no_handler_takes_a_file_that_was_not_uploaded(home, names, route):
    web, result = client(), list(handlers())
    assert len(result) == 3  # New run, Add data, Import
    for number, inputs, places in result:
        for name in names:
            for several in (False, True):
                data = [None] * inputs
                for place in places:
                    file = {"path": name, "meta": FILE}
                    data[place] = [file] if several else file
                response = web.post(route, json={"fn_index": number, "data": data, "session_hash": "x"})
                error = response.json()["error"]
                assert (response.status_code, error["value"]) == (403, name)
                assert error["field"].endswith("path")
                assert "Upload the file first" in error["fix"]


def test_a_refused_file_is_not_deleted(home, names, tmp_path):
    for number, inputs, places in handlers():
        data = [None] * inputs
        data[places[0]] = {"path": str(tmp_path / "secret.jsonl"), "meta": FILE}
        client().post(PREDICT, json={"fn_index": number, "data": data})
    assert (tmp_path / "secret.jsonl").is_file()


def test_missing_files_and_files_outside_get_the_same_refusal(home, tmp_path):
    """Otherwise the answer would reveal which files exist."""
    (tmp_path / "there").write_text("x")
    answers = []
    for name in ("there", "gone"):
        body = {"fn_index": 0, "data": [{"path": str(tmp_path / name)}]}
        answers.append(client().post(PREDICT, json=body).text.replace(name, ""))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("place", ["data", "event_data", "deep", "beside"])
def test_a_path_is_found_at_any_depth(home, place):
    file = {"path": "/etc/passwd"}
    body = {
        "data": {"data": [file]},
        "event_data": {"data": [], "event_data": {"a": file}},
        "deep": {"data": [[[{"a": {"b": [file]}}]]]},
        "beside": {"data": [{"path": 7, "x": file}]},
    }[place]
    assert client().post(PREDICT, json={"fn_index": 0, **body}).status_code == 403


def test_the_server_does_not_fetch_urls_in_files(home, upload):
    asked = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

    with HTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/x"
        for number, inputs, places in handlers():
            for file in ({"path": url, "meta": FILE}, {"path": str(upload), "url": url, "meta": FILE}):
                data = [""] * inputs
                data[places[0]] = file
                client().post(PREDICT, json={"fn_index": number, "data": data})
        server.shutdown()
    assert asked == []


def test_an_uploaded_file_reaches_its_handler(home, upload):
    number = next(number for number, inputs, _ in handlers() if inputs == 1)  # Import
    upload.write_text("stage: sft\nmodel_name_or_path: org/model\nfinetuning_type: lora\n")
    body = {"fn_index": number, "data": [[{"path": str(upload), "meta": FILE}]]}
    response = client().post(PREDICT, json=body)
    assert response.status_code == 200
    assert "org/model" in json.dumps(response.json()["data"])


@pytest.mark.parametrize("asked", [9999, -1, None, "0", True, 1.0])
def test_an_unknown_handler_is_not_found(home, asked):
    response = client().post(PREDICT, json={"fn_index": asked, "data": []})
    assert (response.status_code, response.json()["error"]["field"]) == (404, "fn_index")


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_call_that_is_not_json_is_refused(home, body):
    response = client().post(PREDICT, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400


def test_a_file_of_another_user_is_not_an_upload(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    file = tmp_path / f"{sign_of(LOCAL)}folder" / "rows.jsonl"
    file.parent.mkdir()
    file.write_text("x")
    assert uploaded_file(str(file), tmp_path) == file
    os.chown(file, 65534, 65534)
    with pytest.raises(NotUploaded):
        uploaded_file(str(file), tmp_path)


def test_no_account_uses_the_upload_of_another(upload):
    eve, taken = account("eve"), 0
    for number, inputs, places in handlers():
        data = [None] * inputs
        data[places[0]] = {"path": str(upload), "meta": FILE}
        refused = client().post(PREDICT, json={"fn_index": number, "data": data}, headers=eve)
        taken += refused.status_code != 403
    assert taken == 0 and upload.is_file()


def test_an_account_uploads_no_more_than_it_may_store(home):
    api, eve = client(), account("eve")
    api.patch("/api/users/eve", json={"max_disk_bytes": 100_000}).raise_for_status()

    def sent(size):
        return api.post("/gradio_api/upload", files={"files": ("rows.jsonl", b"x" * size)}, headers=eve)

    kept = sent(60_000)
    refused = sent(60_000)
    assert (kept.status_code, refused.status_code) == (200, 422), refused.text
    assert "eve may use on disk" in refused.json()["error"]["message"]
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.jsonl"\r\n\r\nx\r\n--x--\r\n'
    form = eve | {"Content-Type": "multipart/form-data; boundary=x"}
    assert api.post("/gradio_api/upload", content=iter([body]), headers=form).status_code == 411
    Path(*kept.json()).unlink()
    assert sent(60_000).status_code == 200
    assert api.post("/gradio_api/upload", files={"files": ("rows.jsonl", b"x" * 200_000)}).status_code == 200


def test_an_incomplete_upload_is_not_an_upload(tmp_path):
    """Gradio writes it beside the folders of complete uploads."""
    (tmp_path / "tmpabc").write_text("half")
    with pytest.raises(NotUploaded):
        uploaded_file(str(tmp_path / "tmpabc"), tmp_path)


def test_a_text_that_is_no_path_of_a_file_is_accepted(tmp_path):
    check_paths({"data": ["/etc/passwd", None, 3, {"name": "/etc/passwd"}]}, tmp_path)


def test_the_component_refuses_paths_too(tmp_path, monkeypatch):
    """A second check, in case a request bypasses the check of the call's body."""
    import gradio as gr

    from app.access.uploads import FOLDER
    from app.pages.common.upload_box import uploads_only
    from app.server import within_event_loop

    monkeypatch.setenv(FOLDER, str(tmp_path / "uploads"))
    box = within_event_loop(lambda: uploads_only(gr.File()))
    with pytest.raises(NotUploaded):
        box.preprocess(gr.FileData(path="/etc/passwd"))


def test_two_uploads_of_the_same_bytes_are_two_files(home):
    files = {"files": ("rows.jsonl", b'{"a": 1}\n')}
    first, second = (client().post("/gradio_api/upload", files=files).json()[0] for _ in range(2))
    Path(first).unlink()
    assert Path(second).read_bytes() == b'{"a": 1}\n'
