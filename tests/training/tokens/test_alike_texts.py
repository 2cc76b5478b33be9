"""Near duplicates among short rows: a table of pairs, each as people would judge it."""

from random import Random

import numpy as np
import pytest
from subtest_table import table

from training.tokens.alike_texts import Texts, alike_pairs

ALIKE = [
    ("What is the capital of France? Paris", "What is the capital of France Paris"),
    ("What is the capital of France? Paris", "what is the capital  of france? paris"),
    ("What is the capital of France? Paris", "What is the capital of Frances? Paris"),
    ("How do I reset my password?", "How do I reset my pasword?"),
    ("How do I reset my password?", "How do I reset my passward?"),
    ("I love this movie. positive", "I loved this movie. positive"),
    ("Please cancel my order.", "Please cancel my order!"),
    ("Thanks for the quick reply", "Thanks for the quick replay"),
    ("colour of the sky", "color of the sky"),
    ("Der Zug fährt um 8 Uhr ab.", "Der Zug fahrt um 8 Uhr ab."),
    ("naïve Bayes classifier", "naive Bayes classifier"),
    ("\uff21 full-width question", "A full-width question"),
    ("Le train part à huit heures.", "Le train part a huit heures."),
    ("今天天气怎么样我想出去走走吧", "今天天气怎么样我想出去走走啊"),
    ("Поезд отправляется утром", "Поезд отправляется утрам"),
    ("The order 4711 was sent to Berlin", "The order 4711 was sent to Berlim"),
    ("It's raining in the mountains today", "It\u2019s raining in the mountains today"),
    (
        "Summarize: the cat sat on the mat and slept all day long.",
        "Summarize: the cat sat on the mat and slept all day long",
    ),
    (
        "The committee will meet on Thursday in the large room on the second floor.",
        "The committee will meet on Thursday in the large rooms on the second flor.",
    ),
    ("aaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaa"),
]
DIFFERENT = [
    ("What is 12 + 7? 19", "What is 12 + 8? 20"),
    ("Is 1234567 a prime? No", "Is 1234568 a prime? No"),
    ("Compute 2 + 2 for the class", "Compute 2 * 2 for the class"),
    ("while a == b: continue looping", "while a != b: continue looping"),
    ("cat", "car"),
    ("yes", "yet"),
    ("A", "B"),
    ("big dog", "big fog"),
    ("What is the capital of France? Paris", "What is the capital of Greece? Athens"),
    ("How do I reset my password?", "How do I change my address?"),
    ("I love this movie. positive", "I hate this movie. negative"),
    ("Please cancel my order.", "Please repeat my order."),
    ("Der Zug fährt um 8 Uhr ab.", "Der Zug fährt um 9 Uhr ab."),
    ("The order 4711 was sent to Berlin", "The order 4712 was sent to Berlin"),
    ("born in 1968, died in 2001", "born in 1986, died in 2001"),
    ("today it rains in the north", "today it snows in the south"),
    ("translate: house - Haus", "translate: mouse - Maus"),
    ("x = y + z", "x = y - z"),
    ("The temperature is -5 degrees", "The temperature is 5 degrees"),
    ("open the red box at noon", "close the blue bag at dusk"),
]


def filler(count, seed=0):
    chance = Random(seed)
    return ["".join(chance.choices("abcdefghijklmnop", k=40)) for _ in range(count)]


def pairs(folder, texts, chunk=1000):
    written = Texts(folder)
    for start in range(0, len(texts), chunk):
        written.add(texts[start : start + chunk])
    written.close()
    everything = lambda rows, _: np.ones(len(rows), bool)  # noqa: E731
    return {
        (int(other), int(row))
        for rows, others in alike_pairs(folder, len(texts), everything)
        for row, other in zip(rows, others, strict=True)
    }


@table(("first", "second"), ALIKE)
def test_short_rows_that_differ_a_little_are_alike(tmp_path_factory, first, second):
    assert pairs(tmp_path_factory.mktemp("texts") / "t", [*filler(20), first, second]) == {(20, 21)}


@table(("first", "second"), DIFFERENT)
def test_rows_with_another_number_sign_or_meaning_are_not_alike(tmp_path_factory, first, second):
    assert not pairs(tmp_path_factory.mktemp("texts") / "t", [*filler(20), first, second])


def test_all_pairs_of_a_set_are_found_at_once_and_no_others(tmp_path):
    texts = [text for pair in (*ALIKE, *DIFFERENT) for text in pair]
    places = {text: place for place, text in reversed([*enumerate(texts)])}
    found = {(texts[one], texts[other]) for one, other in pairs(tmp_path / "t", texts)}
    wanted = {frozenset(pair) for pair in ALIKE}
    near = {frozenset(pair) for pair in found if places[pair[0]] != places[pair[1]]}
    precision, recall = len(near & wanted) / len(near), len(near & wanted) / len(wanted)
    assert recall == 1 and precision >= 0.9, (near - wanted, wanted - near)


def test_every_place_of_a_change_is_found_across_chunks(tmp_path):
    texts = filler(60)
    changed = [text[:place] + "z" + text[place + 1 :] for place, text in zip(range(40), texts, strict=False)]
    removed = [text[:place] + text[place + 1 :] for place, text in zip(range(40), texts, strict=False)]
    found = pairs(tmp_path / "t", [*texts, *changed, *removed], chunk=17)
    assert {(row, 60 + row) for row in range(40)} <= found
    # Of rows with the same key each is paired with the one before it.
    assert all((row, 100 + row) in found or (60 + row, 100 + row) in found for row in range(40))
    assert all((row - other) % 20 == 0 for row, other in found)  # only of one text


def test_a_template_makes_no_rows_alike(tmp_path):
    words = filler(100)
    texts = [f"You are a helpful assistant. Translate the word into German: {text[:7]}" for text in words]
    assert not pairs(tmp_path / "t", texts)
    assert not pairs(tmp_path / "few", texts[:10])
    whole = [f"You are a helpful assistant. Translate the words into German: {text}" for text in words]
    assert pairs(tmp_path / "whole", [*whole, whole[7][:-2] + "." + whole[7][-1]]) == {(7, 100)}


@pytest.mark.slow
def test_a_hundred_thousand_rows_have_their_pairs(tmp_path):
    texts = filler(50_000)
    texts += [f"{text[:20]}z{text[21:]}" for text in texts]
    found = pairs(tmp_path / "t", texts)
    assert {(row, row + 50_000) for row in range(50_000)} <= found
