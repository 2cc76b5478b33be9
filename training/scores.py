"""How near an answer is to the expected one: ROUGE and SQuAD's token F1 by torchmetrics, as shares from 0 to 1."""

import re
from statistics import fmean
from typing import Any

_WORD = re.compile(r"[^\W_]+")  # of any script; for Latin letters the words that ROUGE's own tokenizer finds
_ROUGE = ("rouge1", "rouge2", "rougeL")  # rougeLsum asks for sentences, whose splitter is a download
SCORES = ("f1", *_ROUGE)


def score(answer: str, expected: str) -> dict[str, float]:
    """F1 and the F-measures of ROUGE-1, -2 and -L of an answer, by name."""
    from torchmetrics.functional.text import rouge_score, squad

    target = {"answers": {"answer_start": [0], "text": [expected]}, "id": "0"}
    f1 = float(squad([{"prediction_text": answer, "id": "0"}], [target])["f1"]) / 100
    rouge = rouge_score(answer, expected, tokenizer=_WORD.findall, normalizer=str.lower, rouge_keys=_ROUGE)
    return {"f1": f1} | {name: float(rouge[f"{name}_fmeasure"]) for name in _ROUGE}


def means(rows: list[dict[str, Any]], moment: str) -> dict[str, float]:
    """The mean of each score over the answers of a moment, before or after training."""
    return {f"{name}_{moment}": fmean(row[f"{name}_{moment}"] for row in rows) for name in SCORES}
