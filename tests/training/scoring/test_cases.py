"""Verdicts on cases, and rows of the training data in a prompt."""

from subtest_table import table

from training.data.example import Example
from training.results.few_shot import with_shots
from training.scoring.cases import verdict
from training.scoring.request import Prompt


@table(
    ("after", "before", "expected"),
    [
        (1.0, 1.0, "kept"), (1.0, 0.0, "fixed"), (1.0, None, "fixed"), (0.4, 0.5, "broken"), (None, 1.0, "broken"),
        (0.0, 0.0, "failing"), (None, None, "failing"), (0.5, 0.5, "kept"),
    ],
)  # fmt: skip
def test_a_case_with_a_threshold_is_kept_fixed_broken_or_failing(after, before, expected):
    assert verdict(Prompt(user="a", expect="contains", threshold=0.5), "x", "y", (after, before)) == expected


@table(("answer", "before", "expected"), [("a\n", "a", "kept"), ("a", "b", "broken")])
def test_a_case_as_the_baseline_answered_is_kept_or_broken(answer, before, expected):
    assert verdict(Prompt(user="a", expect="baseline"), answer, before, (None, None)) == expected


def test_shots_of_chats_stand_between_the_system_message_and_the_question():
    def turns(*texts):
        return [{"role": role, "content": text} for role, text in texts]

    own = Example(messages=turns(("system", "s"), ("user", "q"), ("assistant", "a")))
    shot = Example(
        messages=turns(("system", "t"), ("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2"))
    )
    text = Example(prompt="p", answer="c")
    found = with_shots(own, [shot, text])
    assert [turn["content"] for turn in found.messages] == ["s", "q2", "a2", "p", "c", "q", "a"]
    assert with_shots(own, []) is own


def test_shots_of_texts_are_separated_by_empty_lines():
    found = with_shots(Example(prompt="3 + 3 =", answer=" 6"), [Example(prompt="1 + 1 =", answer=" 2")])
    assert (found.prompt, found.answer) == ("1 + 1 = 2\n\n3 + 3 =", " 6")
