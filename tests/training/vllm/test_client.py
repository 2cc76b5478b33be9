"""What a client of vLLM says of a server that is none: every answer in another form is an error with the address and the fix."""

from typing import Any

import httpx
import pytest

from training.vllm.client import Client, VllmError, over_network

URL, FIX = "http://host:8000/v1", "Check the address."
JSON, HTML = "application/json", "text/html"


def client_of(status: int, body: str, kind: str = JSON) -> Client:
    """A client of a server that answers every request so."""
    answer = httpx.Response(status, content=body, headers={"content-type": kind})
    http = httpx.Client(transport=httpx.MockTransport(lambda _: answer), base_url="http://host")
    return Client(http, URL, "vllm_url", FIX)


def refused(call: Any) -> VllmError:
    with pytest.raises(VllmError) as failure:
        call()
    problem = failure.value.problem
    assert (problem.field, problem.value, problem.fix) == ("vllm_url", URL, FIX)
    return failure.value


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("<html>", HTML), ("<html>", JSON), ("null", JSON), ("[1]", JSON), ("[" * 100_000, JSON), ('{"data": []}', JSON),
        ('{"data": null}', JSON), ('{"data": ["m"]}', JSON), ('{"data": [{"id": "llama3", "object": "model"}]}', JSON),
        ('{"data": [{"id": "m", "max_model_len": null}]}', JSON), ('{"data": [{"id": "m", "max_model_len": Infinity}]}', JSON),
    ],
)  # fmt: skip
def test_a_list_of_models_in_another_form_is_of_no_vllm(body: str, kind: str) -> None:
    assert "is no vLLM server" in refused(client_of(200, body, kind).context).message


@pytest.mark.parametrize(
    "body",
    [
        "{}", "[1]", "null", '{"choices": []}', '{"choices": [{"index": 0, "text": "an answer without tokens"}]}',
        '{"choices": [{"index": 0, "logprobs": null, "token_ids": null}]}',
        '{"choices": [{"index": 0, "logprobs": [], "token_ids": ["a"]}]}',
    ],
)  # fmt: skip
def test_an_answer_in_another_form_is_of_no_vllm(body: str) -> None:
    client = client_of(200, body)
    assert "is no vLLM server" in refused(lambda: client.sample({}, 5)).message
    if body != '{"choices": []}':  # an answer to no prompt
        assert "is no vLLM server" in refused(lambda: client.complete({})).message


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, '{"error": "not found"}', "not found"), (404, '{"detail": "Not Found"}', "{'detail': 'Not Found'}"),
        (401, '{"error": {"message": "bad key", "code": "invalid_api_key"}}', "bad key"), (404, "[1]", "[1]"),
        (500, "null", "null"), (500, '"x"', '"x"'), (500, '{"error": null}', '{"error": null}'),
        (502, "<html>", "<html>"), (302, "", "Found"),
        (400, '{"object": "error", "message": "no such model", "code": 400}', "no such model"),
    ],
)  # fmt: skip
def test_a_refusal_in_any_form_has_its_status_and_reason(status: int, body: str, reason: str) -> None:
    client = client_of(status, body)
    for call in (client.models, lambda: client.sample({}, 5), client.wake, lambda: list(client.stream({}))):
        error = refused(call)
        assert (error.status, error.message) == (status, f"refused the request with status {status}: {reason}.")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"error": {"message": "too long", "code": 400}}', "with status 400: too long"),
        ('{"error": "busy"}', "with status 500: busy"),
        ("<html>", "is no vLLM server"),
        ("[]", "is no vLLM server"),
    ],
)
def test_a_part_of_an_answer_in_another_form_is_an_error(line: str, words: str) -> None:
    assert words in refused(lambda: list(client_of(200, f"data: {line}\n\n", "text/event-stream").stream({}))).message


@pytest.mark.parametrize("url", ["http://127.0.0.1:abc", "http://a..b:8000", "http://xn--a"])
def test_what_is_no_address_is_of_no_vllm(url: str) -> None:
    with pytest.raises(VllmError, match=r"vllm_url .*is no vLLM server"):
        Client(over_network(url), url, "vllm_url").context()
