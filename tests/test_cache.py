"""The cache that forgets after a moment."""

from app.cache import TimedCache


def kept(size=2):
    """A cache, the clock that it goes by, and what it had to make."""
    now, made = [0.0], []
    cache = TimedCache(seconds=1.0, size=size, clock=lambda: now[0])

    def get(key):
        return cache.get(key, lambda: made.append(key) or len(made))

    return cache, now, made, get


def test_what_was_made_lately_is_not_made_again():
    _, now, made, get = kept()
    assert get("a") == 1
    now[0] = 0.9
    assert get("a") == 1
    now[0] = 1.1
    assert get("a") == 2
    assert made == ["a", "a"]


def test_the_oldest_make_room():
    _, _, made, get = kept(size=2)
    for key in ("a", "b", "c", "b", "a"):
        get(key)
    assert made == ["a", "b", "c", "a"]


def test_what_was_cleared_is_made_anew():
    cache, _, made, get = kept()
    get("a")
    cache.clear()
    get("a")
    assert made == ["a", "a"]
