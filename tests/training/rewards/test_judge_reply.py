"""Tests of the score in a judge's reply: read from its scale, or not at all."""

import pytest
from subtest_table import table

from training.rewards.judge_reply import score_in

SCORES = [
    ('{"score": 7}', 0.7),
    ('{"score": "7"}', 0.7),
    ('{"score": "7/10"}', 0.7),
    ('{"score": "7 out of 10"}', 0.7),
    ('{"Rating": 2, "scale": 10}', 0.2),
    ('{"score": {"value": 6}, "of": 10}', 0.6),
    ('{"score": 1e1}', 1.0),
    ('{"score": 2, "underscore": 9}', 0.2),
    ('{"score": 2, "max_score": 10}', 0.2),
    ('{"reason": "8/10 at first sight", "score": 2}', 0.2),
    ('```json\n{"score": 4}\n```', 0.4),
    ('{"result": {"score": 3}}', 0.3),
    ("{'score': 4}", 0.4),
    ('{"score": 4,5}', 0.45),
    ("<think>perhaps a score: 9</think>Score: 2", 0.2),
    ("Score: 8.5, since 3 of 4 hold", 0.85),
    ("**Score:** 3/10", 0.3),
    ("**Score: 3/10**", 0.3),
    ("# Score\n7", 0.7),
    ("| Score | 7 |", 0.7),
    ("Score (0-10): 7", 0.7),
    ("Score: 70%", 0.7),
    ("Score: 4/5", 0.8),
    ("Score - 7", 0.7),
    ("Score: 7 - a good answer", 0.7),
    ("<score>3</score> of 10", 0.3),
    ("Bewertung: 7,5 von 10 Punkten", 0.75),
    ("得分\uff1a3\uff0f10", 0.3),
    ("Rating: [[7]]", 0.7),
    ("Initial score: 5. Final score: 7", 0.7),
    ("Correctness score: 3\nStyle score: 9\nOverall score: 4", 0.4),
    ("7 of 10 facts are right. Score: 4", 0.4),
    ("Maximum score: 10. Score: 4", 0.4),
    ("I rate this 3 out of 10.", 0.3),
    ("7/10", 0.7),
    ("3½/10", 0.35),
    ("A score of 10 would need sources, so I give it 6/10.", 0.6),
    ("The score would be 2. It has 10 words.", 0.2),
    ("Rating: 3 stars out of 5", 0.6),
    (r"\boxed{3}", 0.3),
    ("得分: 7分", 0.7),
    ("7分", 0.7),
    ("スコア: 7/10", 0.7),
    ("評点\uff1a7点", 0.7),
    ("점수: 7점", 0.7),
    ("Оценка: 7", 0.7),
    ("Pontuação: 7,5", 0.75),
    ("The answer is right.\n\n[[7]]", 0.7),
    ("7", 0.7),
    ("It names 3 of the facts.\n\n**7**", 0.7),
    ('Here is my assessment:\n\n{"reasoning": "It names 3 of the 4 capitals.", "score": 7.5}', 0.75),
    ('{"score": "9"}', 0.9),
    ('{"score": 10.0, "max": 10}', 1.0),
    ('{"score": "85%"}', 0.85),
    ('{"score": 7', 0.7),
    ("{'score': 7, 'reason': 'short'}", 0.7),
    ('{"analysis": {"score": 3, "note": "partial"}, "score": 6}', 0.6),
    ("Final score: 6.5 / 10", 0.65),
    ("I'd rate this answer 4/10 because only 1/3 of the steps are shown.", 0.4),
    ("The answer is right in 9/10 cases but the tone is wrong. Score: 5/10", 0.5),
    ("7,5/10", 0.75),
    ("Note : 7/10. La réponse est correcte mais incomplète.", 0.7),
    ("得分\uff1a6分\uff08满分10分\uff09", 0.6),
    ('<think>Maybe 3? No, the date is right, so 8.</think>\n{"score": 8}', 0.8),
    ("<think>First I thought of Score: 3, but it cites the source.</think>\nScore: 9", 0.9),
    ("Score: 8.5/10 (would be 10/10 with a citation)", 0.85),
    ("Score: 80/100", 0.8),
    ("Step 1: the year (1969) is right.\nStep 2: the name is wrong.\n\nScore: 5", 0.5),
    ("| criterion | points |\n| --- | --- |\n| accuracy | 3 |\n| style | 4 |\n\n**Total score: 7**", 0.7),
    ("a" * 300_000 + " Score: 3", 0.3),
]
NONE = [
    "",
    "great",
    "I cannot rate this.",
    '{"score": null}',
    '{"score": null, "reason": "2 errors"}',
    '{"score": true}',
    '{"score": NaN}',
    '{"score": "high"}',
    '{"score": 11}',
    '{"score": -1}',
    '{"first": {"score": 9}, "second": {"score": 3}}',
    "Score: 11/10",
    "Score: 3-4",
    "Score: ten",
    "Score: 5 → 7",
    "得分: 3分钟",
    "Score: 1e400",
    "Score: 0 = wrong, 10 = right",
    "Score 10: perfect\nScore 0: wrong",
    "Correctness score: 3\nStyle score: 9",
    "3/10 for style and 8/10 for content",
    "7 out of 10 facts are right.",
    "4 of 5 facts, so I say 9",
    "Rate from 0 (wrong) to 10.",
    "A score of 10 would need sources.",
    "The score would be 8 if it had sources.",
    "On 10/10/2026",
    "Rating: 3 stars",
    "Note: 3 errors",
    '{"score": 85}',
    '{"score": "N/A", "reason": "The prompt has 3 parts and none can be judged."}',
    '{"scores": [7, 8, 6]}',
    '{"score": 2}\n\nWait, I overlooked a sentence. Corrected:\n\n{"score": 8}',
    "Accuracy: 8/10\nFluency: 6/10",
    "The response lists 5 items where 10 were expected.",
    "Score: between 6 and 8",
    "★★★★☆",
    "Seven out of ten.",
    "<think>perhaps a score: 9",
]


@table(("reply", "score"), SCORES)
def test_the_score_is_read_from_its_scale(reply, score):
    assert score_in(reply, 10) == pytest.approx(score)


@table("reply", NONE)
def test_a_reply_without_one_score_within_the_scale_has_none(reply):
    assert score_in(reply, 10) is None


@table(
    "reply",
    ["{" * 200_000, '{"a":' * 40_000, "score: " * 30_000, "1/" * 100_000, "9" * 200_000, "Score:" + " " * 200_000],
)
def test_a_reply_that_is_made_to_be_slow_has_no_score(reply):
    assert score_in(reply, 10) is None
