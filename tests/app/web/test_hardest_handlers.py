"""No text that a page sends to one of its handlers stops the server, as test_hardest_texts.py says of routes."""

import json
from collections import defaultdict

import pytest
from hardest import NAMES, hard, measured, one_of_hardest, without_hub  # noqa: F401
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


def request(item, place, name, text):
    """A request with a text in one place of a handler, and its name."""
    data = [None] * len(item["inputs"])
    data[place] = text
    body = {"fn_index": item["id"], "data": data, "session_hash": "hard"}
    asked = {"method": "post", "url": "/gradio_api/run/predict", "headers": {"Content-Type": "application/json"}}
    content = json.dumps(body, ensure_ascii=False).encode()
    return f"{item['id']} {item['api_name']} {place} ({name})", asked | {"content": content}


def one_for_each_text():
    """A request with one of the hardest inputs for each text of each handler."""
    number = 0
    for item, places in handlers():
        for place in places:
            ((name, text),) = one_of_hardest(number, LONGEST // 8)
            yield request(item, place, name, text)
            number += 1


def all_for_each_component():
    """A request for each component and each of the hardest inputs; the handlers that take the component have turns.

    One for each text of each handler and each input would take half a day.
    """
    uses = defaultdict(list)
    for item, places in handlers():
        for place in places:
            uses[item["inputs"][place]].append((item, place))
    for taken in uses.values():
        for number, name in enumerate(NAMES):
            item, place = taken[number % len(taken)]
            yield request(item, place, name, hard(name, LONGEST // 8))


@pytest.mark.nightly
def test_each_text_of_a_handler_takes_one_of_the_hardest_inputs():
    assert sum(len(places) for _, places in handlers()) > 2000
    assert measured(one_for_each_text()) == {}


@pytest.mark.nightly
def test_each_component_takes_all_of_the_hardest_inputs():
    assert measured(all_for_each_component()) == {}
