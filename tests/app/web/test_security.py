"""Requests that the web server refuses, and its security headers."""

import re
from pathlib import Path

import forked_server
import pytest
from web import application, client

from app.web.security import Rules
from worker.settings import Settings

UPLOAD = "/gradio_api/upload"
ELSEWHERE = {"Origin": "https://evil.example"}


def told(response):
    return response.json()["error"]


def rules(**settings):
    return Rules.of(Settings.model_validate(settings))


def upload(web, content, **headers):
    return web.post(UPLOAD, files={"files": ("rows.jsonl", content)}, headers=headers)


def left_behind():
    """Files in the application's upload folder."""
    return [path for path in Path(application().state.uploads).rglob("*") if path.is_file()]


def test_an_unknown_host_name_is_refused(home):
    """Otherwise a site whose name resolves to 127.0.0.1 would count as the same origin (DNS rebinding)."""
    response = client("http://rebound.example").get("/")
    assert response.status_code == 403
    assert (told(response)["field"], told(response)["value"]) == ("host", "rebound.example")


@pytest.mark.parametrize(
    "hosts",
    [
        ["127.0.0.1:7860", "127.0.0.1:7860"],
        ["127.0.0.1:7860", "evil.example"],
        ["evil@127.0.0.1:7860"],
        ["a:b@127.0.0.1"],
    ],
)
def test_a_request_for_two_hosts_or_with_a_user_is_refused(home, hosts):
    response = client().get("/healthz", headers=[("host", host) for host in hosts])
    assert (response.status_code, told(response)["field"]) == (400, "host")


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]:7860"])
def test_the_names_of_this_machine_are_accepted(host):
    assert rules().knows_host(host)


@pytest.mark.parametrize("host", ["", "127.0.0.1.evil.example", "evil.example:7860", "[::1", "localhost.evil.example"])
def test_names_similar_to_this_machine_are_refused(host):
    assert not rules().knows_host(host)


def test_a_server_on_the_network_accepts_any_host_but_checks_origins():
    network = rules(host="0.0.0.0")
    assert network.knows_host("lathe.lan")
    assert not network.allows_origin(headers(host="lathe.lan", origin="https://evil.example"))


def test_an_allowed_origin_counts_as_host_and_origin():
    behind = rules(allowed_origins="https://lathe.example.org, https://other.example/")
    assert behind.knows_host("lathe.example.org")
    assert behind.allows_origin(headers(host="127.0.0.1:7860", origin="https://other.example"))


@pytest.mark.parametrize(
    ("origin", "site", "allowed"),
    [
        ("http://127.0.0.1:7860", "same-origin", True),
        (None, None, True),
        (None, "same-origin", True),
        ("null", "cross-site", False),
        ("http://127.0.0.1:9999", "same-site", False),
        ("http://localhost:7860", "cross-site", False),
        (None, "cross-site", False),
        (None, "same-site", False),
    ],
)
def test_only_pages_of_this_server_and_programs_can_send_requests(origin, site, allowed):
    sent = headers(host="127.0.0.1:7860", origin=origin, **{"sec-fetch-site": site})
    assert rules().allows_origin(sent) is allowed


@pytest.mark.parametrize(
    "path", ["/api/runs", "/gradio_api/run/predict", "/gradio_api/queue/join", UPLOAD, "/api/runs/x/stop"]
)
def test_a_page_of_another_site_cannot_change_anything(home, path):
    response = client().post(path, json={}, headers=ELSEWHERE)
    assert response.status_code == 403
    assert told(response)["field"] == "origin"


@pytest.mark.parametrize(
    "path", ["/gradio_api/queue/data?session_hash=x", "/gradio_api/heartbeat/x", "/gradio_api/startup-events"]
)
def test_a_page_of_another_site_cannot_read_gradio_events(home, path):
    assert client().get(path, headers=ELSEWHERE).status_code == 403


@pytest.mark.parametrize("path", ["/", "/api/runs", "/config"])
def test_no_response_allows_another_origin(home, path):
    response = client().get(path, headers=ELSEWHERE)
    assert not [name for name in response.headers if name.startswith("access-control-allow")]


def test_a_preflight_of_another_site_is_refused(home):
    asked = {**ELSEWHERE, "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in client().options("/api/runs", headers=asked).headers


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file/etc/passwd",
        "/file=/etc/passwd",
        "/gradio_api/proxy=https://a.hf.space/",
        "/gradio_api/info",
        "/gradio_api/openapi.json",
        "/gradio_api/call/opened",
        "/gradio_api/run/opened",
        "/gradio_api/runs",
        "/gradio_api/component_server",
        "/gradio_api/vibe-edit",
        "/gradio_api/process_recording",
        "/gradio_api/deep_link",
        "/monitoring",
        "/login",
        "/token",
        "/docs",
        "/openapi.json",
        "/pwa_icon",
        "/svelte/index.js",
    ],
)
def test_routes_that_pages_do_not_need_are_not_served(home, path):
    web = client()
    assert web.get(path).status_code == 404
    assert web.post(path, json={}).status_code == 404


@pytest.mark.parametrize(
    "path", ["/static/lathe/..%2f..%2fpyproject.toml", "/static/lathe/starter", "/static/../pyproject.toml"]
)
def test_only_our_own_style_and_scripts_are_read_from_disk(home, path):
    assert client().get(path).status_code in (403, 404)


def test_pages_run_only_scripts_of_this_server(home):
    response = client().get("/new")
    policy = response.headers["content-security-policy"]
    nonce = re.search(r"'nonce-([^']+)'", policy)[1]
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
    assert "frame-ancestors 'none'" in policy
    assert set(re.findall(r"<script[^>]*nonce=\"([^\"]*)\"", response.text)) == {nonce}
    assert len(re.findall(r"<script[\s>]", response.text)) == response.text.count(f'nonce="{nonce}"')


def test_every_page_has_another_nonce(home):
    policies = {client().get("/new").headers["content-security-policy"] for _ in range(3)}
    assert len(policies) == 3


@pytest.mark.parametrize("path", ["/", "/new", "/run?id=x", "/api/runs", "/healthz"])
def test_every_response_forbids_sniffing_and_framing(home, path):
    sent = client().get(path).headers
    assert (sent["x-content-type-options"], sent["x-frame-options"], sent["referrer-policy"]) == (
        "nosniff",
        "DENY",
        "same-origin",
    )


def test_pages_load_nothing_from_other_servers(home):
    loaded = re.findall(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["'](https?:)?//""", client().get("/new").text)
    assert loaded == []


def test_gradio_stores_no_history_and_sends_no_analytics(home):
    config = client().get("/config").json()
    assert config["run_history"] is False
    assert config["analytics_enabled"] is False
    assert config["footer_links"] == []


def test_no_event_of_the_pages_is_open_to_gradio_clients(home):
    assert {event["api_visibility"] for event in client().get("/config").json()["dependencies"]} == {"private"}


def test_an_upload_with_a_too_large_content_length_is_refused_at_once(home):
    web = client(upload_limit_bytes=1000)
    declared = {"Content-Length": "99999999", "Content-Type": "multipart/form-data; boundary=x"}
    response = web.post(UPLOAD, content=b"", headers=declared)
    assert response.status_code == 413
    assert told(response)["field"] == "file"
    assert "1,000 bytes" in told(response)["message"]


def test_a_too_large_chunked_upload_is_stopped_without_leftovers(home):
    web = client(upload_limit_bytes=1000)
    piece = b"x" * 2**16
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.jsonl"\r\n\r\n'

    def body():
        yield head
        for _ in range(32):
            yield piece

    response = web.post(UPLOAD, content=body(), headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert response.status_code == 413
    assert [
        path for path in Path(application(upload_limit_bytes=1000).state.uploads).rglob("*") if path.is_file()
    ] == []


def test_an_upload_within_the_limit_is_stored_in_the_data_folder(home):
    response = upload(client(), b"{}\n")
    assert response.status_code == 200
    (path,) = response.json()
    assert Path(path) in left_behind()
    Path(path).unlink()


def test_other_bodies_are_limited_too(home):
    response = client().post("/api/runs", content=b"x" * (4 * 1024**2 + 1))
    assert response.status_code == 413


@pytest.mark.parametrize(
    "path", ["/api/runs", "/api/forecasts", "/api/diagnoses", "/api/imports", "/gradio_api/run/predict"]
)
def test_a_too_large_chunked_body_is_refused(home, path):
    response = client().post(
        path, content=(b" " * 2**20 for _ in range(6)), headers={"Content-Type": "application/json"}
    )
    assert (response.status_code, told(response)["field"]) == (413, "body")
    assert "4,194,304 bytes" in told(response)["message"]


def test_leftover_uploads_of_ended_processes_are_removed(home):
    import socket

    from app.server import create_app
    from worker.settings import get_settings

    uploads = get_settings().uploads_dir
    gone, elsewhere = uploads / f"{socket.gethostname()}-999999999", uploads / "other-host-1"
    for folder in (gone, elsewhere):
        folder.mkdir()
        (folder / "tmpabc").write_bytes(b"half")
    create_app(get_settings())
    assert not gone.exists()
    assert elsewhere.exists()


@pytest.mark.slow
def test_the_web_process_does_not_import_training_libraries():
    names = forked_server.imported()
    assert "app.pages" in names
    assert names.isdisjoint({"torch", "transformers", "peft", "deepspeed", "accelerate"})


def headers(**values):
    from starlette.datastructures import Headers

    return Headers({name: value for name, value in values.items() if value is not None})


def test_a_browser_at_an_unknown_address_gets_a_page_and_a_program_an_error(home):
    page = client().get("/nowhere", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.status_code == 404
    assert "Page not found" in page.text and '<a href="/datasets"' in page.text
    assert told(client().get("/nowhere"))["field"] == "path"
    assert told(client().post("/nowhere", headers={"Accept": "text/html"}))["field"] == "path"
