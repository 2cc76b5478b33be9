"""Hard pairs of an answer and the expected text with their token F1 and ROUGE, worked out by hand from the definitions of these
metrics, and mathematics in boxes."""

import math
import time

import pytest
from subtest_table import table

from training.rewards import built_in
from training.rewards.built_in import REWARDS
from training.rewards.sample import Sample
from training.scoring.text_scores import score

# SQuAD's evaluate-v2.0.py: lower case, without ASCII punctuation, then without a, an and the; shared words are counted as often as
# both have them. Without words on one side it is 1 if the other has none either.
F1 = [
    ("The cat", "cat", 1),
    ("an apple", "the apple", 1),
    ("THE END", "end.", 1),
    ("theater", "ater", 0),
    ("an other", "another", 0),
    ("U.S.", "US", 1),
    ("don't", "dont", 1),
    ("x_y", "xy", 1),
    ("well-known", "wellknown", 1),
    ("well-known", "well known", 0),
    ("100%", "100", 1),
    ("-5", "5", 1),
    ("3.14", "314", 1),
    ("cat cat", "cat", 2 / 3),  # precision 1/2, recall 1
    ("b b c", "b c c", 2 / 3),  # b and c once each, of three and three
    ("c b", "b c", 1),
    ("answer is 42", "42", 1 / 2),
    ("it is the red car", "red", 2 / 5),  # of it, is, red, car: precision 1/4, recall 1
    ("naïve", "naive", 0),
    ("„Berlin“", "Berlin", 0),
    ("中文", "中文。", 0),
    ("a", "a", 1),
    ("the", "cat", 0),
    ("", "...", 1),
    ("", "cat", 0),
    ("Paris\n\tFrance", " paris   france ", 1),
]

# rouge-score without a stemmer: lower case, words of letters and digits (here of any script), F = 2PR / (P + R).
ROUGE = [
    # Lin 2004, section 3: "police kill the gunman" and "the gunman kill police" against "police killed the gunman"
    ("police kill the gunman", "police killed the gunman", 3 / 4, 1 / 3, 3 / 4),
    ("the gunman kill police", "police killed the gunman", 3 / 4, 1 / 3, 1 / 2),
    ("the cat", "the cat sat", 4 / 5, 2 / 3, 4 / 5),
    ("cat the", "the cat", 1, 0, 1 / 2),
    ("cat", "cat", 1, 0, 1),
    ("the the the", "the", 1 / 2, 0, 1 / 2),
    ("a a a", "a a", 4 / 5, 2 / 3, 4 / 5),
    ("a x b y c", "a b c", 3 / 4, 0, 3 / 4),
    ("b c a", "a b c", 1, 1 / 2, 2 / 3),
    ("well-known", "well known", 1, 1, 1),
    ("a_b", "a b", 1, 1, 1),
    ("it's", "its", 0, 0, 0),
    ("3.14", "3,14", 1, 1, 1),
    ("3.14", "314", 0, 0, 0),
    ("running", "run", 0, 0, 0),
    ("The CAT!", "the cat", 1, 1, 1),
    ("naïve", "naïve", 1, 0, 1),
    ("naïve idea", "naive idea", 1 / 2, 0, 1 / 2),
    ("हिन्दी भाषा", "हिन्दी भाषा", 1, 1, 1),
    ("की", "के", 0, 0, 0),
    ("नमस्ते दुनिया", "नमस्त दुनिया", 1 / 2, 0, 1 / 2),
    ("nai\u0308ve", "naive", 0, 0, 0),
    ("да нет", "нет да", 1, 0, 1 / 2),
    ("", "cat", 0, 0, 0),
    ("...", "cat", 0, 0, 0),
]

# math-verify compares by value: order counts in a tuple and not in a set, ends of an interval count, and a decimal is no pi.
MATHEMATICS = [
    (r"\boxed{\frac{1}{2}}", "0.5", 1),
    (r"\boxed{\frac12}", "1/2", 1),
    (r"\boxed{1 + x}", "x + 1", 1),
    (r"\boxed{(x-1)(x+1)}", "x^2 - 1", 1),
    (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", 1),
    (r"\boxed{\frac{1}{\sqrt{3}}}", r"\frac{\sqrt{3}}{3}", 1),
    (r"\boxed{2^{10}}", "1024", 1),
    (r"\boxed{10^{-3}}", "0.001", 1),
    (r"\boxed{\{2, 1\}}", r"\{1, 2\}", 1),
    (r"\boxed{(2, 1)}", "(1, 2)", 0),
    (r"\boxed{(0, 1]}", "[0, 1]", 0),
    (r"\boxed{x = 5}", "5", 1),
    (r"\boxed{3.14}", r"\pi", 0),
    (r"\boxed{-\infty}", r"\infty", 0),
    (r"\boxed{\sqrt{2}}", "1.5", 0),
    (r"\boxed{x - 1}", "1 - x", 0),
]


@table(("answer", "expected", "f1"), F1)
def test_f1_is_squad_s(answer, expected, f1):
    assert score(answer, expected)["f1"] == pytest.approx(f1)


@table(("answer", "expected", "one", "two", "longest"), ROUGE)
def test_rouge_is_that_of_rouge_score(answer, expected, one, two, longest):
    scores = score(answer, expected)
    assert [scores[name] for name in ("rouge1", "rouge2", "rougeL")] == pytest.approx([one, two, longest])


@pytest.mark.slow
@table(("answer", "expected", "right"), MATHEMATICS)
def test_boxes_are_compared_as_mathematics(answer, expected, right):
    pytest.importorskip("math_verify")
    assert REWARDS["boxed"](Sample("", answer, expected)) == right


@pytest.mark.slow
def test_a_busy_machine_costs_no_answer_its_score_and_an_endless_comparison_is_wrong(monkeypatch):
    grader = pytest.importorskip("math_verify.grader")
    compare = grader.sympy_expr_eq

    def waiting(*arguments):
        time.sleep(1.1)  # as if other processes had the processors
        return compare(*arguments)

    def computing(*_arguments):
        while True:
            math.factorial(100)

    scores = []
    for instead, seconds in ((waiting, 1), (computing, 0.1)):
        monkeypatch.setattr(grader, "sympy_expr_eq", instead)
        monkeypatch.setattr(built_in, "_MATH_SECONDS", seconds)
        scores.append(REWARDS["boxed"](Sample("", r"\boxed{2^{10}}", "1 + 2^{9} + 511")))
    assert scores == [1, 0]
