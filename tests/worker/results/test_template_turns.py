"""The template of a result, which an account may have sent in an archive, runs in a process with limits."""

import re
from pathlib import Path

import pytest
from prepared import prepared_installation  # noqa: F401
from web import client

from training.chat.template import LARGEST_BYTES, NAMED
from training.model_info.chat_template import ChatTemplate, turns_of
from worker.results import template_turns

pytestmark = pytest.mark.slow

MOST_MEMORY = 100 * 2**20
CONTENT = "{{ messages[0].content }}"


def status(name):
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


def growth(action):
    """What an action returns, and the most memory that it takes."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    return action(), status("VmHWM") - before


def test_the_parts_are_those_that_this_process_computes(home):
    for text in NAMED.values():
        template = ChatTemplate(text, "<s>", "</s>", None)
        computed = template_turns.turns_of(template, {"enable_thinking": False})
        assert computed == turns_of(text, "<s>", "</s>", {"enable_thinking": False})
        assert computed is not None


@pytest.mark.parametrize(
    "text",
    [
        CONTENT + "{% set x = 'a' * 1500000000 %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}" + CONTENT,
        "{{ 'a' * 200000000 }}" + CONTENT,
        "{{ -" + "-" * LARGEST_BYTES + "1 }}",
    ],
    ids=["memory", "time", "text", "length"],
)
def test_a_template_takes_neither_the_memory_nor_the_time_of_the_server(home, text):
    turns, memory = growth(lambda: template_turns.turns_of(ChatTemplate(text, "", "", None), {}))
    assert turns is None
    assert memory < MOST_MEMORY


def test_the_page_of_a_run_is_shown_whatever_its_template_does(prepared):
    template = prepared.home / "runs" / prepared.finished / "adapter" / "chat_template.jinja"
    template.write_text(CONTENT + "{% set x = 'a' * 1500000000 %}")
    api = client()
    api.get(f"/api/runs/{prepared.failed}/outputs")  # imports
    answer, memory = growth(lambda: api.get(f"/api/runs/{prepared.finished}/outputs"))
    notes = {snippet["program"]: snippet["note"] for snippet in answer.json()["snippets"]}
    assert "cannot be written in Ollama's template language" in notes["Ollama"]
    assert memory < MOST_MEMORY
