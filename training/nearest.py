"""The known names that a wrong one is close to, for hints in errors."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 100
"""Characters of a name that is compared: comparing takes their number times that of all known names."""


def nearest(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The `most` known names that are closest to a name, closest first; none for a name that is longer than all of them are."""
    return get_close_matches(name, [*known], n=most, cutoff=cutoff) if len(name) <= LONGEST else []
