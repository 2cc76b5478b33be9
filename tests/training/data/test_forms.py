"""Rows in forms of other interfaces and of public data sets are read as what they mean, or refused with their name and the way."""

from typing import Any

import pytest
from subtest_table import table

from training.data.example import Example
from training.data.rows import reader
from training.data.suggested_mapping import suggest
from training.data.usual_columns import unused_columns
from training.errors import DataError

CALL = '[{"name": "find", "arguments": {"type": "beta"}}]'
TOOL = '[{"name": "find", "description": "d", "parameters": {"type": {"description": "t", "type": "str"}}}]'


def read(row: dict[str, Any]) -> tuple[str, Example]:
    return reader(None)(row)


def said(example: Example) -> list[str]:
    return [f"{turn['role']}: {turn['content']}" for turn in example.messages or []]


@table(
    ("row", "chosen", "rejected"),
    [
        ({"prompt": "p?", "response_0": "aa", "response_1": "bb", "better_response_id": 0}, "aa", "bb"),
        ({"prompt": "p?", "response_0": "aa", "response_1": "bb", "better_response_id": 1}, "bb", "aa"),
        ({"history": "p?", "human_ref_A": "aa", "human_ref_B": "bb", "labels": 1}, "aa", "bb"),
        ({"history": "p?", "human_ref_A": "aa", "human_ref_B": "bb", "labels": 0}, "bb", "aa"),
    ],
)
def test_pairs_are_read_by_their_label(row: dict[str, Any], chosen: str, rejected: str) -> None:
    row_format, example = read(row)
    assert (row_format, example.prompt, example.answer, example.rejected) == ("preference", "p?", chosen, rejected)
    assert unused_columns(row, [row_format]) == []


def test_openais_preferences_are_a_pair_of_conversations() -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": [], "parallel_tool_calls": True}
    answers = {name: [{"role": "assistant", "content": name}] for name in ("preferred_output", "non_preferred_output")}
    row_format, example = read({"input": asked, **answers})
    assert (row_format, said(example)) == ("preference", ["user: hi", "assistant: preferred_output"])
    assert example.rejected == answers["non_preferred_output"]


def test_calls_of_xlam_are_the_answer_and_their_tools_get_a_schema() -> None:
    _, example = read({"id": 1, "query": "Which?", "answers": CALL, "tools": TOOL})
    assert example.messages and example.messages[-1]["tool_calls"][0]["function"]["name"] == "find"
    assert example.tools and example.tools[0]["function"]["parameters"]["properties"].keys() == {"type"}


@table(
    ("row", "turns"),
    [
        ({"contents": [{"role": "user", "parts": [{"text": "hi"}]}, {"role": "model", "parts": [{"text": "yo"}]}]}, 2),
        ({"conversation": [{"input": "hi", "output": "yo"}, {"input": "more", "output": "ok"}]}, 4),
        ({"system_prompt": "Be a pirate", "instruction": "hi", "output": "arr"}, 3),
    ],
)
def test_conversations_of_other_programs_are_read(row: dict[str, Any], turns: int) -> None:
    row_format, example = read(row)
    assert len(said(example)) == turns and unused_columns(row, [row_format]) == []


def test_anthropics_thinking_is_reasoning() -> None:
    parts = [{"type": "thinking", "thinking": "simple sum", "signature": "x"}, {"type": "text", "text": "4"}]
    _, example = read({"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": parts}]})
    assert example.messages and example.messages[1]["reasoning_content"] == "simple sum"
    assert example.messages[1]["content"] == "4"


ASKED = {"role": "user", "content": "2+2?"}


def spoken(channel: str, content: str = "ok", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "channel": channel, "content": content, **more}


def test_harmonys_channels_are_the_reasoning_and_the_calls_of_an_answer() -> None:
    call = spoken("commentary", '{"city": "Rome"}', recipient="functions.weather", content_type="json")
    result = {"role": "tool", "name": "functions.weather", "content": "sunny"}
    turns = [ASKED, spoken("analysis", "look"), call, result, spoken("analysis", "so"), spoken("final", "Sunny.")]
    _, example = read({"messages": turns})
    assert example.messages == [
        ASKED,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}],
            "thinking": "look",
        },
        result,
        {"role": "assistant", "content": "Sunny.", "thinking": "so"},
    ]


def test_a_channel_that_is_not_harmonys_stays_a_key_of_its_message() -> None:
    _, example = read({"messages": [ASKED, spoken("email", "4")]})
    assert example.messages == [ASKED, spoken("email", "4")]


@table(
    ("turns", "said"),
    [
        ([spoken("analysis")], "no answer follows it"),
        ([spoken("analysis"), ASKED, spoken("final")], "no answer follows it"),
        ([spoken("analysis", train=False), spoken("final")], "has another train"),
        ([spoken("commentary"), spoken("final")], "commentary without a call"),
        ([spoken("commentary", "x", recipient="functions.f")], "not a JSON object"),
    ],
)
def test_channels_that_no_answer_can_have_are_refused(turns: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read({"messages": [ASKED, *turns]})


@table("tag", [True, False])
def test_kto_tag_is_the_label_of_an_answer(tag: bool) -> None:
    turns = [{"from": "human", "value": "p"}, {"from": "gpt", "value": "r"}]
    row_format, example = read({"conversations": turns, "kto_tag": tag})
    assert (row_format, example.label) == ("unpaired preference", tag)


PLACEHOLDER = "placeholder for an image, audio or video"


@table(
    ("row", "said"),
    [
        ({"prompt": "Write code that sorts", "text": "def f(x): return sorted(x)"}, "prompt=prompt, completion=text"),
        ({"query": "<img>https://x.org/a.jpeg</img>What is this?", "response": "A cat"}, PLACEHOLDER),
        ({"query": "Look <ImageHere> there", "response": "A cat"}, PLACEHOLDER),
        ({"question": "Which?", "choices": ["a", "b"], "answer": "B"}, "choices into the question"),
        ({"prompt": "p?", "response_0": "a", "response_1": "b"}, "match no known format"),
        ({"prompt": "p?", "preferred": "a", "other": "b"}, "match no known format"),
        ({"What is 1?": "What is 2?", "one": "two"}, "looks like data"),
        ({"columns": ["a"], "index": [0], "data": [["x"]]}, 'orient="records"'),
        ({"system": "s", "chat": "USER: hi ASSISTANT: yo"}, "Glaive"),
        ({"instruction": "i", "completions": [{"response": "a", "overall_score": 1}]}, "UltraFeedback"),
        ({"prompt": "p", "answers": [{"answer": "a", "rank": 1}], "num_responses": 1}, "Nectar"),
        ({"contents": [{"role": "model", "parts": [{"functionCall": {}}]}]}, "functionCall of Gemini"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "name": "x"}]}]}, "Anthropic"),
    ],
)
def test_what_is_not_read_is_refused_with_its_name_and_the_way(row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as refused:
        read(row)
    assert said in str(refused.value) and refused.value.fix


@table("text", ["Use the <img> tag of HTML: <img src='a.png'>.", "A <b>bold</b> word", "5 <a> b </a>"])
def test_text_about_html_is_no_picture(text: str) -> None:
    read({"prompt": text, "completion": "ok"})


def test_no_mapping_is_suggested_that_drops_the_choices() -> None:
    assert suggest([{"question": "Which?", "choices": ["a", "b"], "answer": "B"}]) is None
    assert suggest([{"question": "Which?", "note": 1, "answer": "B"}]) == "prompt=question, completion=answer"
