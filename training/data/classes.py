"""Checks that the answers of rows are classes and not free text. No torch."""

from collections.abc import Sequence

from training.errors import DataError

_LONGEST_CLASS = 200  # characters
_FEW_ROWS = 20  # in which many classes prove nothing
ONE_CLASS = "is the same class in every row, so there is nothing to learn."
ONE_CLASS_FIX = "Use rows of at least two classes."
_FIX = "Give every row a short label (columns text and label), or choose the task sft."


def check_classes(names: Sequence[str], *, all_rows: bool = False) -> None:
    """Checks the classes of rows, empty for a row without one: all rows, or the first ones.

    Raises:
        DataError: no row has a class, all have the same, or the answers are free text.
    """
    classes = [name for name in names if name]
    if not classes:
        raise DataError("has no row with a class.", _FIX, field="label")
    longest = max(map(len, classes))
    if longest > _LONGEST_CLASS:
        raise DataError(f"has answers of up to {longest:,} characters in the place of classes.", _FIX, field="label")
    different = len(set(classes))
    if all_rows and different < 2:
        raise DataError(ONE_CLASS, ONE_CLASS_FIX, field="label")
    if len(classes) >= _FEW_ROWS and different > len(classes) / 2:
        message = f"has {different:,} different classes in {len(classes):,} rows, which are free text and not classes."
        raise DataError(message, _FIX, field="label")
