"""ROUGE and token F1 of held-out answers, computed by hand and by a run."""

import json
from pathlib import Path

import pytest
from tiny import make_data, make_model
from trainer_process import train_here

from training.scoring.score_card import ScoreCard
from training.scoring.text_scores import SCORES, score

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.mark.parametrize(
    ("answer", "expected", "f1", "rouge"),
    [
        ("Paris", "Paris", 1, (1, 0, 1)),
        ("the cat sat", "The cat sat.", 1, (1, 1, 1)),
        ("", "Paris", 0, (0, 0, 0)),
        # 2 of 4 words are 2 of the expected 3; "a" and "the" are no words to SQuAD's F1: 2 of 3 and 2 of 2.
        ("dogs chase the cats", "the cats dogs", 1 - 1 / 5, (6 / 7, 2 / 5, 4 / 7)),
        ("кошка спит", "Кошка спит", 1, (1, 1, 1)),
    ],
)
def test_scores_are_those_computed_by_hand(answer: str, expected: str, f1: float, rouge: tuple[float, ...]) -> None:
    scores = score(answer, expected)
    assert tuple(scores) == SCORES
    assert list(scores.values()) == pytest.approx([f1, *rouge], abs=1e-6)


@pytest.mark.train
def test_every_row_and_the_summary_have_the_scores(tmp_path: Path) -> None:
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "data.jsonl")
    trained = train_here(tmp_path / "run", model, data, answer_rows=3, max_new_tokens=8, max_steps=1, eval_steps=0)
    rows = [json.loads(line) for line in (tmp_path / "run/answers.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    for name in SCORES:
        for moment in ("before", "after"):
            mean = sum(row[f"{name}_{moment}"] for row in rows) / 3
            assert trained.summary["answers"][f"{name}_{moment}"] == pytest.approx(mean)
    card = ScoreCard.model_validate(trained.summary["answers"]["card"])
    assert (card.rows, card.decoding, card.dtype) == (3, {"search": "greedy", "max_new_tokens": 8}, "float32")
    assert list(card.metrics) == ["exact_match", *SCORES] and card.weights["base"] == "model"
    assert rows[0]["f1_after"] == score(rows[0]["after"], rows[0]["expected"])["f1"]
