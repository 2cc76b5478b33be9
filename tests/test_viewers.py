"""Pages that ask for news while a person acts: what is sent is what is new, in the order in which things happened."""

import threading

from app.pages.viewers import Viewers


def test_two_calls_of_one_page_wait_for_each_other_and_the_second_knows_what_the_first_sent():
    viewers: Viewers[str] = Viewers()
    inside, go_on, order = threading.Event(), threading.Event(), []

    def slow(before):
        inside.set()
        assert go_on.wait(30)
        order.append(("slow", before))
        return "slow", None

    def quick(before):
        order.append(("quick", before))
        return "quick", None

    first = threading.Thread(target=viewers.serve, args=("page", slow))
    first.start()
    assert inside.wait(30)
    second = threading.Thread(target=viewers.serve, args=("page", quick))
    second.start()
    go_on.set()
    first.join()
    second.join()
    assert order == [("slow", None), ("quick", "slow")]


def test_pages_know_nothing_of_each_other_and_one_without_a_session_is_always_new():
    viewers: Viewers[str] = Viewers()
    seen: list[str | None] = []
    for session in ("a", "b", "a", None, None):
        viewers.serve(session, lambda before, session=session: (seen.append(before), (session or "none", None))[1])
    assert seen == [None, None, "a", None, None]
