"""Prompt sets and their answers have limits together, since lists read all of them."""

import pytest

from worker.store import database as db
from worker.store import prompt_sets
from worker.store.prompt_sets import MOST_OF_ANSWERS, MOST_OF_OWNER, MOST_OF_SET, BadPromptSet


def save(name="a", owner="eve", length=10, count=1):
    with db.write() as session:
        return prompt_sets.save(session=session, name=name, prompts=[{"user": "x" * length}] * count, owner=owner).id


def answer(set_id, model, length):
    with db.write() as session:
        prompt_sets.keep_answers(session=session, set_id=set_id, model=model, answers=[{"text": "y" * length}])


def test_the_prompts_of_a_set_have_a_limit_together(database):
    count = MOST_OF_SET // 20_000
    save(length=20_000, count=count)
    with pytest.raises(BadPromptSet, match="Split the set"):
        save(length=20_000, count=count + 1)


def test_the_answers_of_a_model_have_a_limit(database):
    kept = save()
    with pytest.raises(BadPromptSet, match="Send shorter"):
        answer(kept, "m", MOST_OF_ANSWERS)


def test_all_sets_of_an_owner_with_their_answers_have_a_limit_and_those_of_others_do_not_count(database):
    kept, length = save(), MOST_OF_ANSWERS - 100
    for number in range(MOST_OF_OWNER // length - 1):
        answer(kept, f"m{number}", length)
    answer(save(owner="bob"), "m", length)
    with pytest.raises(BadPromptSet, match="Delete a set"):
        for number in range(2):
            answer(kept, f"more{number}", length)
    answer(kept, "m0", 10)  # in place of the earlier ones
    save("another")
