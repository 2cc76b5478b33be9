"""Each answer carries loss from its first token to its end token, wherever it stands and whatever it consists of."""

from pathlib import Path
from typing import Any

import pytest
from chat_models import make_tokenizer
from subtest_table import table

from training.data.example import Example, Message
from training.tokens.rendering import Renderer

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "description": "a city"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "report", "parameters": PARAMETERS}}]
ASKED = {"role": "user", "content": "Weather?"}
RESULT = {"role": "tool", "content": "sunny"}
WRITTEN = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def call(content: str = "", **more: Any) -> Message:
    function = {"name": "weather", "arguments": {"city": "Rome"}}
    return {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": function}], **more}


def answer(content: str, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def trained(tokenizer: Any, messages: list[Message]) -> list[str]:
    """The parts of the rendered text that carry loss."""
    rendered = Renderer(tokenizer).render(Example(messages=messages, tools=TOOLS))
    return [rendered.text[slice(*span)] for span in rendered.spans]


@table(
    ("messages", "parts"),
    [
        ([ASKED, call(), RESULT, answer("Sun.")], [f"\n{WRITTEN}<|im_end|>", "Sun.<|im_end|>"]),
        ([ASKED, call("I look."), RESULT, answer("Sun.")], [f"I look.\n{WRITTEN}<|im_end|>", "Sun.<|im_end|>"]),
        ([ASKED, call()], [f"{WRITTEN}<|im_end|>"]),
        (
            [ASKED, call(reasoning_content="hm"), RESULT, answer("Sun.", reasoning_content="ah")],
            [f"<think>\nhm\n</think>\n\n\n{WRITTEN}<|im_end|>", "<think>\nah\n</think>\n\nSun.<|im_end|>"],
        ),
        (
            [ASKED, answer("<think>\nhm\n</think>\n\nSun."), ASKED, answer("Rain.", reasoning_content="ah")],
            ["Sun.<|im_end|>", "<think>\nah\n</think>\n\nRain.<|im_end|>"],
        ),
        (
            [ASKED, call(), RESULT, call(), RESULT, answer("A"), ASKED, answer("A")],
            [f"\n{WRITTEN}<|im_end|>"] * 2 + ["A<|im_end|>"] * 2,
        ),
    ],
)
@table("more", [{}, {"more": ["<tool_call>", "</tool_call>"]}])
def test_each_turn_carries_loss_in_a_template_that_writes_the_last_turn_in_another_way(
    messages: list[Message], parts: list[str], more: dict[str, Any]
) -> None:
    special = {"extra_special_tokens": ["<|im_start|>", *more["more"]]} if more else {}
    assert trained(make_tokenizer("qwen3", **more, **special), messages) == parts


def test_white_space_at_the_start_of_an_answer_carries_loss_and_shortens_no_other_answer() -> None:
    """Behind the empty thinking block that the template writes."""
    renderer = Renderer(make_tokenizer("qwen3"))
    for content in (" Sun.", "Rain."):
        rendered = renderer.render(Example(messages=[ASKED, answer(content)]))
        assert [rendered.text[slice(*span)] for span in rendered.spans] == [f"{content}<|im_end|>"]


def test_a_short_question_that_is_also_in_the_answer_does_not_end_it() -> None:
    """Between answers with reasoning, whose turns the template rewrites."""
    turns = [ASKED, answer("<think>\nhm\n</think>\n\nNo, it rains."), {"role": "user", "content": "No"}, answer("Yes.")]
    assert trained(make_tokenizer("qwen3"), turns) == ["No, it rains.<|im_end|>", "Yes.<|im_end|>"]


def test_a_call_without_arguments_carries_loss() -> None:
    without = call() | {"tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {}}}]}
    parts = trained(make_tokenizer("qwen3"), [ASKED, without, RESULT, answer("Sun.")])
    assert len(parts) == 2 and '"arguments": {}' in parts[0] and parts[0].endswith("</tool_call><|im_end|>")


def test_a_turn_that_the_template_leaves_out_has_no_span() -> None:
    tokenizer = make_tokenizer("qwen3")
    messages = [ASKED, answer("<think>\nhm\n</think>\n\nSun."), ASKED, answer("Rain.")]
    tokenizer.chat_template = (
        "{%- for m in messages -%}{%- if m['role'] == 'user' or loop.last -%}"
        "{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>' }}{% endif -%}"
    )
    rendered = Renderer(tokenizer).render(Example(messages=messages))
    assert rendered.answers[0] is None and rendered.answers[1] is not None


CONVERSATIONS = {
    "chat": [ASKED, answer("Sun."), ASKED, answer("Rain.")],
    "calls": [ASKED, call(), RESULT | {"name": "weather"}, answer("Rain.")],
    "reasoning": [ASKED, answer("Sun.", reasoning_content="hm"), ASKED, answer("Rain.", reasoning_content="ah")],
}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@table("family", ["qwen2_5", "qwen3", "qwen3_instruct_2507", "llama3_1", "gptoss", "nemotron_3_nano"])
def test_public_templates_give_each_turn_its_loss(family: str, conversation: str) -> None:
    """Templates that trl ships: tool results and questions carry none."""
    import re

    trl = pytest.importorskip("trl", reason="needs trl's copies of public templates")
    file = Path(str(trl.__file__)).with_name("chat_templates") / f"{family}.jinja"
    source = file.read_text(encoding="utf-8")
    special = sorted(set(re.findall(r"<\|[^|>\s]+\|>", source)))
    end = next(token for token in ("<|im_end|>", "<|eot_id|>", "<|return|>") if token in special)
    tokenizer = make_tokenizer(
        "chatml", chat_template=source, eos_token=end, more=special, extra_special_tokens=special
    )
    messages = CONVERSATIONS[conversation]
    parts = trained(tokenizer, messages)
    answers = [message for message in messages if message["role"] == "assistant"]
    assert len(parts) == len(answers)
    for message, part in zip(answers, parts, strict=True):
        assert message["content"] in part and part.endswith("|>")
        assert not message.get("tool_calls") or "Rome" in part
        assert "sunny" not in part and "Weather?" not in part


def test_a_template_that_joins_the_arguments_of_calls_as_text_gets_them_as_text() -> None:
    template = (
        "{%- for m in messages %}{{ m['role'] + ':' + m['content'] }}{%- for c in m['tool_calls'] or [] %}"
        "{{ ' ' + c['function']['arguments'] }}{% endfor %}{{ '<|im_end|>' }}{% endfor -%}"
    )
    assert trained(make_tokenizer("chatml", chat_template=template), [ASKED, call()])[0].endswith(
        '{"city": "Rome"}<|im_end|>'
    )
