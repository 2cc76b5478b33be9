"""Free text is not taken for classes."""

import pytest
from subtest_table import table

from training.data.example import check_classes
from training.errors import DataError


@table(
    "names", [["a", "b"], ["1", "2", ""] * 9, [f"intent {n % 150}" for n in range(900)], [f"{n}" for n in range(19)]]
)
def test_classes_are_accepted(names):
    check_classes(names)


@table(
    ("names", "words"),
    [
        ([], "no row with a class"),
        (["", ""], "no row with a class"),
        (["a", "b" * 201], "up to 201 characters"),
        ([f"answer {n}" for n in range(40)], "40 different classes in 40 rows"),
    ],
)
def test_free_text_is_refused(names, words):
    with pytest.raises(DataError, match=words):
        check_classes(names)
