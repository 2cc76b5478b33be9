"""The tokens of a tokenizer with their ids, read without torch and transformers, and the comparison of two.

`python -m training.model_info.vocabulary` compares two in a process with limits: an account may have sent either file, and even a
large real one takes a second to parse.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.errors import UserError, answer_json
from training.files import read_regular

_FILE = "tokenizer.json"
_MOST_BYTES = 200 * 2**20
_FIX = "Choose a teacher of the model's family, which has the same tokenizer."


def vocabulary(folder: Path) -> dict[str, int] | None:
    """Returns the id of each token in a folder's tokenizer.json, with special and added ones; None without a readable one."""
    try:
        values = json.loads(read_regular(folder / _FILE, _MOST_BYTES))
        own: Any = values["model"]["vocab"]
        pairs = own.items() if isinstance(own, dict) else ((entry[0], index) for index, entry in enumerate(own))
        added = ((token["content"], token["id"]) for token in values.get("added_tokens") or ())
        return {str(token): int(number) for part in (pairs, added) for token, number in part}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None


def refuse_other_tokens(teacher: str | None, own: Mapping[str, int], others: Mapping[str, int]) -> None:
    """Refuses a teacher with other tokens than the model's: their probabilities would not be those of the same texts. Raises
    UserError if a token is missing or has another id in one of them."""
    different = [token for token in {**own, **others} if own.get(token) != others.get(token)]
    if different:
        token = min(different, key=lambda token: (own.get(token, others.get(token, 0)), token))
        here, there = (values.get(token) for values in (own, others))
        what = f"{token!r} is token {_number(there)}, and {_number(here)} of the model"
        message = f"has another tokenizer: {len(different):,} of {len({**own, **others}):,} tokens differ ({what})."
        raise UserError("teacher", teacher, message, _FIX)


def _number(number: int | None) -> str:
    return "none" if number is None else str(number)


def compared(asked: str) -> dict[str, Any]:
    """Nothing, as JSON, if the tokens of a teacher are the model's; `asked` has the teacher's name, the model's folder and the
    folders of which the first with a tokenizer is the teacher's, as JSON. Raises UserError as `refuse_other_tokens`."""
    teacher, model, folders = json.loads(asked)
    own = vocabulary(Path(model))
    others = next((found for folder in folders if (found := vocabulary(Path(folder)))), None)
    if own and others:
        refuse_other_tokens(teacher, own, others)
    return {}


if __name__ == "__main__":
    answer_json(compared)
