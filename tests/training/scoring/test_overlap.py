"""Tests of the overlap between training and evaluation rows."""

from training.data.example import Example
from training.scoring.overlap import overlap

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def rows(*pairs):
    return [Example(prompt=prompt, answer=answer) for prompt, answer in pairs]


def test_equal_rows_and_equal_prompts_are_counted_without_case_and_punctuation():
    found = overlap(
        rows(("Capital of France?", "Paris"), ("2 + 2", "4"), ("new", "x")),
        rows(("capital of FRANCE", "Paris."), ("2 2", "5")),
    )
    assert (found.rows, found.training_rows, found.equal, found.same_prompt, found.shared_words) == (3, 2, 1, 2, 0)
    assert found.examples == [1, 2]


def test_13_shared_words_within_longer_texts_are_found_and_12_are_not():
    thirteen, twelve = " ".join(LONG.split()[:13]), " ".join(LONG.split()[:12])
    training = rows((f"before {LONG} after", "a"))
    assert overlap(rows((f"other {thirteen} end", "b")), training).shared_words == 1
    assert overlap(rows((f"other {twelve} end", "b")), training).shared_words == 0


def test_words_that_most_evaluation_rows_share_do_not_count():
    evaluation = rows(*((f"{LONG} question {number}", str(number)) for number in range(30)))
    assert overlap(evaluation, rows((f"{LONG} something else", "x"))).shared_words == 0


def test_system_prompts_do_not_count():
    def chat(question):
        turns = [("system", LONG), ("user", question), ("assistant", "yes")]
        return [Example(messages=[{"role": role, "content": text} for role, text in turns])]

    assert overlap(chat("first"), chat("second")).shared_words == 0
    assert overlap(chat("first"), chat("first")).equal == 1
