"""The latest diagnoses of the installation, kept for two seconds for all viewers."""

from app.documents.diagnoses import Recent, recent
from app.pages.common.cache import TimedCache

_recent: TimedCache[None, list[Recent]] = TimedCache(seconds=2.0)


def latest() -> list[Recent]:
    """The last ten diagnoses, the newest first, at most two seconds old."""
    return _recent.get(None, recent)


def forget() -> None:
    """Clears the cache, after a diagnosis was shared or deleted."""
    _recent.clear()
