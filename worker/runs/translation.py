"""Configurations of other programs that users send, translated in a process with limits."""

import json
from collections.abc import Sequence

from training.errors import Problem, UserError
from training.foreign.translate import Imported
from worker.machine import programs

LONGEST = 2**20  # characters; configurations have a few thousand
_SHORTER = "Give the configuration alone, a notebook without its outputs, or use `lathe import`."


def translated(texts: Sequence[tuple[str, str]]) -> Imported:
    """The translation of texts with their names; a later one adds to an earlier one and overrides it. Reads no file: a text must
    not make the server read its own.

    Raises:
        UserError: a text is too long, takes too long, or is of no known program.
    """
    for name, text in texts:
        if len(text) > LONGEST:  # a part of a configuration would be another one
            raise UserError("file", name, "is larger than 1 MiB.", _SHORTER)
    try:
        document = programs.run_for_json(programs.TRANSLATING, [], text=json.dumps([*texts]))
    except programs.ProgramError as error:
        raise UserError("file", texts[0][0], f"cannot be read: {error}.", _SHORTER) from None
    if problem := document.get("problem"):
        known = Problem(**problem)
        raise UserError(known.field, known.value, known.message, known.fix)
    return Imported.from_document(document)
