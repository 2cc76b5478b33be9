"""Pages that ask for news while a person acts: what is sent is what is new, in the order in which things happened."""

import threading

from app.pages.common.viewers import Viewers


def test_calls_of_a_page_run_one_after_another_and_share_its_state():
    viewers: Viewers[str] = Viewers()
    inside, go_on, order = threading.Event(), threading.Event(), []

    def slow(before):
        inside.set()
        assert go_on.wait()
        order.append(("slow", before))
        return "slow", None

    def quick(before):
        order.append(("quick", before))
        return "quick", None

    first = threading.Thread(target=viewers.serve, args=("page", slow))
    first.start()
    assert inside.wait()
    second = threading.Thread(target=viewers.serve, args=("page", quick))
    second.start()
    go_on.set()
    first.join()
    second.join()
    assert order == [("slow", None), ("quick", "slow")]


def test_pages_have_separate_state_and_without_a_session_it_is_new():
    viewers: Viewers[str] = Viewers()
    seen: list[str | None] = []
    for session in ("a", "b", "a", None, None):
        viewers.serve(session, lambda before, session=session: (seen.append(before), (session or "none", None))[1])
    assert seen == [None, None, "a", None, None]
