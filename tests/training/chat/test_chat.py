"""Turns with loss, their weights, reasoning in earlier turns, and templates of one's own."""

from pathlib import Path
from typing import Any

import pytest
from chat_models import CHATML, QWEN3, chat, make_tokenizer
from subtest_table import table

from training.chat.rendering_settings import ChatSettings, answer_weights, with_row_weight
from training.chat.template import LONGEST_REASON, from_file, is_source, rendering_error, syntax_problem
from training.config.choices import LossOn, Reasoning
from training.config.run_config import RunConfig
from training.data.example import Example
from training.errors import DataError
from training.tokens.rendering import Renderer
from training.tokens.store import store_key

MARKED = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "first", "train": False, "weight": 2},
    {"role": "user", "content": "b"},
    {"role": "assistant", "content": "second", "weight": 0.5},
]


@table(
    ("settings", "weights"),
    [
        (ChatSettings(), [1, 1]),
        (ChatSettings(loss_on=LossOn.LAST), [0, 1]),
        (ChatSettings(loss_on=LossOn.FIELD), [0, 1]),
        (ChatSettings(loss_on=LossOn.FIELD, loss_field="weight"), [1, 1]),
        (ChatSettings(weight_field="weight"), [2, 0.5]),
        (ChatSettings(weight_field="weight", loss_on=LossOn.LAST), [0, 0.5]),
        (ChatSettings(weight_field="missing"), [1, 1]),
    ],
)
def test_the_settings_decide_the_weight_of_each_answer(settings: ChatSettings, weights: list[float]) -> None:
    assert answer_weights(MARKED, settings) == weights
    assert answer_weights(MARKED, settings, 3.0) == [3 * weight for weight in weights]


@table(
    ("value", "carries"),
    [(True, True), (False, False), (0, False), (1, True), ("false", False), ("1", True), (None, True)],
)
def test_a_field_says_whether_a_turn_or_a_row_carries_loss(value: Any, carries: bool) -> None:
    settings = ChatSettings(loss_on=LossOn.FIELD, loss_field="learn")
    message = {"role": "assistant", "content": "x", "learn": value}
    assert answer_weights([message], settings) == [float(carries)]
    assert with_row_weight(Example(answer="x"), {"learn": value}, settings).weight == float(carries)


@table("value", [-1, "much", float("nan"), True, [1], 1e9])
def test_a_wrong_weight_names_its_field_and_the_fix(value: Any) -> None:
    settings = ChatSettings(weight_field="weight")
    with pytest.raises(DataError, match=r"messages\[0\].weight.*not a loss weight.*from 0") as raised:
        answer_weights([{"role": "assistant", "content": "x", "weight": value}], settings)
    assert raised.value.field == "messages[0].weight"
    with pytest.raises(DataError, match="weight"):
        with_row_weight(Example(answer="x"), {"weight": value}, settings)


def test_a_wrong_mark_names_its_field() -> None:
    message = {"role": "assistant", "content": "x", "train": "perhaps"}
    with pytest.raises(DataError, match=r"messages\[0\].train.*'perhaps'.*true or false"):
        answer_weights([message], ChatSettings(loss_on=LossOn.FIELD))


def test_only_turns_with_loss_have_spans_and_the_template_gets_no_field_of_lathe() -> None:
    template = CHATML.replace(
        "+ m['content'] +", "+ m['content'] + (m['weight'] | string if m['weight'] is defined else '') +"
    )
    tokenizer = make_tokenizer("chatml", chat_template=template)
    settings = ChatSettings(loss_on=LossOn.LAST, weight_field="weight")
    rendered = Renderer(tokenizer, settings).render(Example(messages=MARKED))
    assert [rendered.text[slice(*span)] for span in rendered.spans] == ["second<|im_end|>"]
    assert rendered.weights == (0.5,)
    assert "first<|im_end|>" in rendered.text


def test_without_a_template_an_end_token_of_an_answer_without_loss_has_none() -> None:
    from training.tokens.encoding import Encoder

    tokenizer = make_tokenizer("chatml", chat_template=None)
    messages = [MARKED[0], MARKED[1] | {"train": True}, MARKED[2], MARKED[3] | {"train": False}]
    encoder = Encoder(tokenizer)
    for settings, trained in ((ChatSettings(), True), (ChatSettings(loss_on=LossOn.FIELD), False)):
        rendered = [Renderer(tokenizer, settings).render(Example(messages=messages))]
        encoded = encoder.collect(rendered, encoder.encode(rendered))
        assert (int(encoded.spans[-1][2]) == int(encoded.lengths[0])) is trained


THOUGHTS = chat("one?", "<think>\nfirst thought\n</think>\n\none", "two?", "two", reasoning_content="second thought")


@table(
    ("reasoning", "first", "second"),
    [
        (Reasoning.TEMPLATE, False, True),
        (Reasoning.DROP, False, True),
        (Reasoning.KEEP, True, True),
    ],
)
@table("inline", [True, False])
def test_reasoning_of_earlier_turns(reasoning: Reasoning, first: bool, second: bool, inline: bool) -> None:
    messages = [dict(message) for message in THOUGHTS["messages"]]
    if not inline:
        messages[1] |= {"content": "one", "reasoning_content": "first thought"}
    rendered = Renderer(make_tokenizer("qwen3"), ChatSettings(reasoning=reasoning)).render(Example(messages=messages))
    assert ("first thought" in rendered.text, "second thought" in rendered.text) == (first, second)
    trained = [rendered.text[slice(*span)] for span in rendered.spans]
    if reasoning is Reasoning.KEEP:
        assert trained[0] == "<think>\nfirst thought\n</think>\n\none<|im_end|>"
    assert trained[-1] == "<think>\nsecond thought\n</think>\n\ntwo<|im_end|>"


def test_a_template_that_keeps_reasoning_itself_writes_it_once() -> None:
    settings = ChatSettings(reasoning=Reasoning.KEEP)
    text = Renderer(make_tokenizer("chatml"), settings).render(Example(messages=THOUGHTS["messages"])).text
    assert text.count("first thought") == 1
    dropped = Renderer(make_tokenizer("chatml"), ChatSettings(reasoning=Reasoning.DROP))
    assert "<think>" not in dropped.render(Example(messages=THOUGHTS["messages"])).text


def test_keeping_reasoning_that_no_template_writes_is_refused() -> None:
    template = CHATML.replace("m['content'] +", "m['content'].split('</think>')[-1] +")
    renderer = Renderer(make_tokenizer("chatml", chat_template=template), ChatSettings(reasoning=Reasoning.KEEP))
    with pytest.raises(DataError, match=r"writes none.*Set reasoning_history to template"):
        renderer.render(Example(messages=THOUGHTS["messages"]))


def test_tools_and_calls_are_rendered_by_the_template() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    tools = [{"type": "function", "function": {"name": "add"}}]
    rendered = Renderer(make_tokenizer("qwen3"), ChatSettings(arguments="enable_thinking=false")).render(
        Example(messages=messages, tools=tools)
    )
    assert '# Tools\n{"type": "function", "function": {"name": "add"}}' in rendered.text
    (span,) = rendered.spans
    assert rendered.text[slice(*span)].endswith('{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>')


@table(
    ("source", "problem"),
    [
        (QWEN3, None),
        (
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
            None,
        ),
        ("{% for m in messages %}\n{{ m.content }}\n{% endif %}", "line 3"),
        ("{{ messages | nonsense }}", "nonsense"),
        ("{{ messages }", "line 1"),
        ("{{ " + "(" * 5000 + "}}", "line 1"),
        ("x" * 300_000 + "{{ messages }}", "at most"),
    ],
)
def test_the_syntax_of_a_template_is_checked_without_running_it(source: str, problem: str | None) -> None:
    found = syntax_problem(source)
    assert (found is None) if problem is None else ((found is not None and problem in found) or "nested" in str(found))


def test_a_template_is_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}\n")
    assert (is_source(str(file)), is_source("{{ messages }}")) == (False, True)
    assert from_file(file) == "{{ messages }}\n"
    for content, reason in (
        (b"plain", "not a Jinja template"),
        (b"\xff\xfe{{", "UTF-8"),
        (b"{{ x }}" * 50_000, "larger"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=reason):
            from_file(file)


def test_white_space_at_the_ends_of_a_template_is_kept() -> None:
    config = RunConfig.model_validate({"model": " m ", "data": "d", "chat_template": "  {{ messages }}\n\n"})
    assert (config.model, config.chat_template) == ("m", "  {{ messages }}\n\n")
    assert RunConfig.model_validate({"model": "m", "data": "d", "chat_template": " "}).chat_template is None


def test_tasks_other_than_sft_define_themselves_which_turns_carry_loss() -> None:
    values = {"model": "m", "data": "d", "loss_on": "last", "weight_field": "weight", "chat_template": "{{ messages }}"}
    assert ChatSettings.of(RunConfig.model_validate(values)).loss_on is LossOn.LAST
    chosen = ChatSettings.of(RunConfig.model_validate(values | {"task": "dpo"}))
    assert chosen == ChatSettings(template="{{ messages }}")


def test_each_rendering_has_its_own_token_store() -> None:
    keys = {
        store_key("0" * 64, "m", None, chat=settings.key)
        for settings in (ChatSettings(), ChatSettings(loss_on=LossOn.LAST), ChatSettings(template="{{ messages }}"))
    }
    assert len(keys) == 3
    assert store_key("0" * 64, "m", None, chat=ChatSettings().key) == store_key("0" * 64, "m", None)


def test_what_a_template_says_is_shortened():
    """The reports of 64 templates are remembered: each said 20 MB."""
    error = rendering_error(ValueError("a" * 100_000))
    assert len(str(error)) < LONGEST_REASON + 300
