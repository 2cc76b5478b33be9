"""Imports of all users share two threads: those of one user do not keep others waiting."""

import threading

from app.access.dataset_imports import Intakes


def test_the_imports_of_a_user_wait_for_one_of_each_other_user():
    intakes, release, begun, ended = Intakes(), threading.Event(), [], threading.Semaphore(0)

    def begin(owner, number):
        def add():
            release.wait()
            begun.append(owner)
            ended.release()
            return []

        intakes.begin(f"{owner}{number}", 0, add, owner=owner)

    for number in range(20):
        begin("eve", number)
    for number in range(3):
        begin("bob", number)
    release.set()
    for _ in range(23):
        ended.acquire()
    assert [place for place, owner in enumerate(begun) if owner == "bob"][-1] < 12
    assert begun.count("eve") == 20


def test_an_import_of_one_that_fails_leaves_the_others(home):
    intakes, done = Intakes(), threading.Event()

    def fails():
        raise OSError("no disk")

    def adds():
        done.set()
        return []

    intakes.begin("fails", 0, fails, owner="eve")
    intakes.begin("adds", 0, adds, owner="eve")
    done.wait()
