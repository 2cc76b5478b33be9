"""Prompts without answers: what they are read as, and the tokens that a run draws samples after."""

import json

import pytest
from tiny import make_model

from training.config.task import StoredText, Task
from training.data.example import EmptyRow, Example
from training.data.inspection import inspect, preview
from training.data.row_formats import find_format
from training.data.rows import reader
from training.errors import DataError
from training.tokens.encoding import Encoder
from training.tokens.parts import PartRenderer, misfit, tasks_of
from training.tokens.rendering import Renderer

USER = {"role": "user", "content": "Why?"}
CHAT = [{"role": "system", "content": "Be brief."}, USER]


@pytest.mark.parametrize("row", [
    {"prompt": "a", "solution": "b", "question": "c"}, {"prompt": [USER], "answer": "b"}, {"prompt": "a", "chosen": "b"},
    {"prompt": 3}, {"prompt": []}, {"prompt": [{"text": "a"}]}, {"prompt": "a", "completion": {"text": "b"}},
])  # fmt: skip
def test_a_prompt_beside_what_may_be_its_answer_is_no_prompt_alone(row):
    with pytest.raises(DataError):
        find_format(row)


def test_a_mapping_chooses_the_answer_or_that_there_is_none():
    row = {"prompt": [USER], "solution": "Because.", "question": "How?"}
    assert reader("prompt=prompt, completion=solution")(row)[1].answered
    assert reader("prompt=prompt")(row) == ("prompt", Example([USER], answered=False))
    asked = [{"role": "user", "content": "How?"}]
    assert reader("instruction=question")(row) == ("prompt", Example(asked, answered=False))


def test_a_prompt_that_ends_with_an_answer_is_refused_with_the_column_for_it():
    with pytest.raises(DataError, match="ends with a message of the role assistant") as refused:
        reader()({"prompt": [USER, {"role": "assistant", "content": "b"}], "level": 1})
    assert "completion" in refused.value.fix and "prompt" in str(refused.value)


def test_a_prompt_of_empty_messages_is_an_empty_row():
    with pytest.raises(EmptyRow):
        reader()({"prompt": [{"role": "user", "content": "  "}]})


def test_only_tasks_that_draw_samples_take_prompts_alone():
    assert tasks_of("prompt") == [Task.GRPO, Task.DISTILL]
    assert "needs prompts with answers" in (misfit(Task.SFT, "prompt") or "")


def test_a_file_of_prompts_is_reported_and_shown_without_answers(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"row {n}", "ground_truth": n}) + "\n" for n in range(4)))
    report = inspect(file)
    assert (report.format, report.rows, report.trainable, report.unused) == ("prompt", 4, True, ["ground_truth"])
    assert report.reason == "every row has the column prompt, and no answer"
    assert preview(file, 1) == [{"number": 1, "parts": [("prompt", "row 0", False)]}]
    file.write_text("".join(json.dumps({"question": f"row {n}", "level": n}) + "\n" for n in range(4)))
    assert (inspect(file).mappable, inspect(file, columns="instruction=question").trainable) == (True, True)


def test_rows_with_and_without_answers_are_not_mixed(tmp_path):
    alone, answered = ({"prompt": "a", "level": 1}, {"prompt": "a", "completion": "b"})
    for rows, field, words in (
        ((answered, alone), "completion", "is missing"),
        ((alone, answered), "prompt", "has an answer, and the rows before are prompts without one"),
    ):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (error,) = [issue for issue in inspect(file).problems if issue.level == "error"]
        assert (error.line, error.field) == (2, field) and words in error.message


@pytest.mark.slow
@pytest.mark.parametrize("template", [True, False])
def test_a_prompt_alone_has_the_tokens_of_one_with_an_answer(tmp_path, template):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(make_model(tmp_path / "model", template=template))
    renderer, encoder = Renderer(tokenizer), Encoder(tokenizer)
    source = PartRenderer(tokenizer, StoredText.SOURCE)
    answer = [{"role": "assistant", "content": "So."}]
    for alone, answered in (
        (Example(CHAT, answered=False), Example([*CHAT, *answer])),
        (Example([*CHAT, *answer, USER], answered=False), Example([*CHAT, *answer, USER, *answer])),
        (Example(prompt="a b", answered=False), Example(prompt="a b", answer="c")),
    ):
        text, _ = renderer.question(answered)
        assert renderer.question(alone) == (text, "")
        assert encoder.prompt(renderer.last_turn(alone)) == encoder.prompt(renderer.last_turn(answered))
        assert encoder.whole(source.render(alone)) == encoder.whole(source.render(answered))
