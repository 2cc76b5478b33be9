"""F1 and ROUGE of an answer against the expected text."""

import regex

# Words of any script, with their vowel signs; for Latin letters the same words as ROUGE's own tokenizer.
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+")
_ROUGE = ("rouge1", "rouge2", "rougeL")  # rougeLsum needs a sentence splitter, which is a download
SCORES = ("f1", *_ROUGE)


def score(answer: str, expected: str) -> dict[str, float]:
    """Returns F1 and the F-measures of ROUGE-1, -2 and -L of an answer, by name."""
    from torchmetrics.functional.text import rouge_score, squad

    target = {"answers": {"answer_start": [0], "text": [expected]}, "id": "0"}
    f1 = float(squad([{"prediction_text": answer, "id": "0"}], [target])["f1"]) / 100
    rouge = rouge_score(answer, expected, tokenizer=_WORD.findall, normalizer=str.lower, rouge_keys=_ROUGE)
    return {"f1": f1} | {name: float(rouge[f"{name}_fmeasure"]) for name in _ROUGE}
