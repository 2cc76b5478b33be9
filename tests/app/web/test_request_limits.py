"""Requests are read within limits: one body, pattern, template or search does not stop the server."""

import re

import pytest
from played_run import model_folder
from web import client

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def api(home):
    return client()


def test_every_route_with_a_json_body_reads_it_within_limits(api):
    paths = api.app.openapi()["paths"]
    routes = [
        (method, path)
        for path, methods in paths.items()
        for method, route in methods.items()
        if "application/json" in route.get("requestBody", {}).get("content", {})
    ]
    assert len(routes) > 15
    for method, path in routes:
        answer = api.request(method, re.sub(r"\{\w+\}", "x", path), content=b"[NaN]", headers=JSON)
        assert (answer.status_code, "NaN" in answer.text) == (422, True), (method, path, answer.text)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" * 100_000, "nesting"),
        (b'{"name": "\\ud800"}', "surrogate"),
        (b'{"learning_rate": NaN}', "NaN"),
        (b'{"warmup": 1e999}', "range"),
        (b"\xff", "UTF-8"),
        (b"{", "Expecting"),
    ],
)
@pytest.mark.parametrize("path", ["/api/runs", "/api/checks", "/api/forecasts", "/v1/chat/completions"])
def test_a_body_that_cannot_be_stored_is_refused_with_the_reason(api, path, body, reason):
    answer = api.post(path, content=body, headers=JSON)
    assert answer.status_code in (400, 422)
    error = answer.json()["error"]
    assert (error["field"], reason in error["message"]) == ("body", True), error


def test_an_infinite_number_written_as_text_is_refused_with_its_setting(api, tmp_path):
    settings = {"model": str(model_folder(tmp_path / "model")), "data": "none", "warmup": "inf"}
    for path in ("/api/checks", "/api/forecasts", "/api/runs"):
        assert "warmup" in api.post(path, json=settings).text


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/api/datasets?name=rows.jsonl", b'{"prompt": "1", "completion": "2"}\n{"prompt": "2", "completion": "3"}\n'),
        ("/api/imports", b"base_model: m\nmicro_batch_size: 2\n"),
        ("/api/diagnoses", b"ValueError: this is a log\n"),
    ],
)
def test_a_file_in_the_body_need_not_be_json_whatever_the_header_says(api, path, content):
    answer = api.post(path, content=content, headers=JSON)
    assert answer.status_code < 300, answer.text


def test_settings_are_answered_whatever_they_stand_for(api, tmp_path):
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f", {after}: &{after} [{','.join(['*' + before] * 9)}]"
    settings = {"model": str(model_folder(tmp_path / "model")), "data": "none"}
    for change in (
        {"method_options": bomb},
        {"target_modules": "(([a-z._0-9])+)+!"},
        {"chat_template": "{{ 'a' * 10**10 }}"},
        {"chat_template": "{{ 7**(3*10**7) }}"},
    ):
        for path in ("/api/checks", "/api/forecasts", "/api/runs"):
            answer = api.post(path, json=settings | change)
            assert answer.status_code < 500, answer.text
            assert len(answer.content) < 100_000


def test_a_search_of_many_words_is_refused(api):
    answer = api.get("/api/runs", params={"search": "word " * 300})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "search")


@pytest.mark.parametrize("path", ["/api/datasets", "/api/datasets/check"])
@pytest.mark.parametrize("given", [{"name": "a\0.jsonl"}, {"name": "a.jsonl", "columns": "prompt=q\0"}])
def test_a_nul_character_in_an_address_is_refused(api, path, given):
    answer = api.post(path, params=given, content=b'{"q": "a"}\n')
    field = list(given)[-1]
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field), answer.text


def test_a_nul_character_in_a_body_is_refused_with_its_place(api):
    body = {"name": "a", "prompts": [{"user": "b"}, {"user": "a\0b"}]}
    answer = api.post("/api/prompt-sets", json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "prompts.2.user")
    assert answer.json()["error"]["message"] == "contains a NUL character."
