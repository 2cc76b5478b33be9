"""The cache that forgets after a moment."""

from app.pages.common.cache import TimedCache


def kept(size=2):
    """A cache, the clock that it goes by, and what it had to make."""
    now, created = [0.0], []
    cache = TimedCache(seconds=1.0, size=size, clock=lambda: now[0])

    def get(key):
        return cache.get(key, lambda: created.append(key) or len(created))

    return cache, now, created, get


def test_recent_values_are_cached():
    _, now, created, get = kept()
    assert get("a") == 1
    now[0] = 0.9
    assert get("a") == 1
    now[0] = 1.1
    assert get("a") == 2
    assert created == ["a", "a"]


def test_the_oldest_values_are_evicted():
    _, _, created, get = kept(size=2)
    for key in ("a", "b", "c", "b", "a"):
        get(key)
    assert created == ["a", "b", "c", "a"]


def test_cleared_values_are_computed_again():
    cache, _, created, get = kept()
    get("a")
    cache.clear()
    get("a")
    assert created == ["a", "a"]
