"""The OpenAPI document describes every route, and the page /api/docs shows it."""

import re

import pytest
from fastapi.routing import APIRoute
from web import client

from app.pages import VIEWS
from app.web.rest.openapi import TAGS, operations
from training.config.fields import settings

_OF_A_RUN = {f"/api/runs/{{run_id}}/{end}" for end in ("plots", "live", "log-window")}
PRIVATE = {"/api/docs", "/api/{path}", *(f"/api/pages{view.path}" for view in VIEWS)} | _OF_A_RUN


@pytest.fixture
def api(home):
    return client()


@pytest.fixture
def document(api):
    return api.get("/api/openapi.json").json()


PATH_CONVERTER = re.compile(":path}")


def routes(api):
    """Path and method of each of our routes under /api/."""
    included = (
        getattr(one, "original_router", one) for one in api.app.routes
    )  # newer FastAPI keeps routers as they are
    listed = [route for one in included for route in getattr(one, "routes", [one])]
    found = [route for route in listed if isinstance(route, APIRoute) and route.path.startswith("/api/")]
    return {(PATH_CONVERTER.sub("}", route.path), method.lower()) for route in found for method in route.methods}


def test_every_route_is_in_the_document(api, document):
    described = {(path, method) for path, item in document["paths"].items() for method in item}
    hidden = {place for place in routes(api) if place not in described}
    assert {path for path, _ in hidden} == PRIVATE


def test_every_path_of_the_document_is_served(api, document):
    for path, item in document["paths"].items():
        for method in item:
            answer = api.request(method, re.sub(r"{.*?}", "unknown", path))
            problem = answer.json().get("error", {}) if answer.status_code >= 400 else {}
            assert answer.status_code != 405, (method, path)
            assert problem.get("field") != "path", (method, path)  # the field of an unknown path


def test_every_route_has_a_subject_a_summary_and_the_form_of_errors(document):
    for path, operation in operations(document):
        assert operation["tags"], path
        assert set(operation["tags"]) <= set(TAGS)
        assert len(operation["summary"]) > 10, path
        assert "Raises" not in operation["description"], path
        assert operation["responses"]["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith("ErrorAnswer")


def test_every_parameter_is_described(document):
    parameters = [(path, one) for path, operation in operations(document) for one in operation.get("parameters", ())]
    assert [f"{path}: {one['name']}" for path, one in parameters if not one["description"]] == []


def test_the_body_of_a_run_lists_every_setting(document):
    body = document["paths"]["/api/runs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(document["components"]["schemas"][body["$ref"].rpartition("/")[2]]["properties"]) == set(settings())


def test_the_page_shows_every_path_and_loads_only_our_own_files(api, document):
    page = api.get("/api/docs")
    assert page.status_code == 200
    assert [path for path in document["paths"] if f"<code>{path}</code>" not in page.text] == []
    loaded = re.findall(r'<(?:link|script|img)[^>]*(?:href|src)="([^"]*)"', page.text)
    assert loaded
    assert all(address.startswith("/static/lathe/") for address in loaded)
    assert "<script" not in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/api/docs", "/api/openapi.json"])
def test_the_reference_needs_a_token_like_the_rest_of_the_api(api, path):
    answer = api.get(path, headers={"Authorization": "Bearer wrong"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (401, "token")
