"""No text that a page sends to one of its handlers stops the server, as test_hardest_texts.py says of routes."""

import json

import pytest
from hardest import hardest, measured, one_of_hardest, without_hub  # noqa: F401
from prepared import prepared_installation  # noqa: F401
from web import client

from app.web.security import BODY_LIMIT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prepared", "offline")]

TEXTS = ("textbox", "code", "dropdown", "state", "radio")
LONGEST = BODY_LIMIT // 2 - 2000


def handlers():
    """Each handler of the pages with the places of its texts."""
    config = client().get("/config").json()
    kinds = {component["id"]: component["type"] for component in config["components"]}
    for item in config["dependencies"]:
        if item["backend_fn"]:
            yield item, [place for place, number in enumerate(item["inputs"]) if kinds[number] in TEXTS]


def requests(inputs):
    """A request for each text of each handler and each of its inputs; `inputs` maps the text's number to them."""
    number = 0
    for item, places in handlers():
        for place in places:
            for name, text in inputs(number, LONGEST // 8):
                data = [None] * len(item["inputs"])
                data[place] = text
                body = {"fn_index": item["id"], "data": data, "session_hash": "hard"}
                content = json.dumps(body, ensure_ascii=False).encode()
                asked = {"method": "post", "url": "/gradio_api/run/predict", "content": content}
                yield (
                    f"{item['id']} {item['api_name']} {place} ({name})",
                    asked | {"headers": {"Content-Type": "application/json"}},
                )
            number += 1


@pytest.mark.nightly
def test_each_text_of_a_handler_takes_one_of_the_hardest_inputs():
    asked = sum(len(places) for _, places in handlers())
    assert asked > 100
    assert measured(requests(one_of_hardest)) == {}


@pytest.mark.nightly
def test_each_text_of_a_handler_takes_all_of_the_hardest_inputs():
    assert measured(requests(lambda _, length: hardest(length))) == {}
