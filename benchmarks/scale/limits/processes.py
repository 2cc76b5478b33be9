"""Runs a function in several processes that begin at the same moment."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

_CONTEXT = multiprocessing.get_context("fork")


def at_once(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(number, *arguments)` returns in each of `count` processes. Their database connections are their own.

    Raises:
        RuntimeError: a process has failed; its error is on standard error.
    """
    barrier = _CONTEXT.Barrier(count)
    pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(count)]
    children = [
        _CONTEXT.Process(target=_child, args=(barrier, sending, function, number, *arguments))
        for number, (_, sending) in enumerate(pipes)
    ]
    for child in children:
        child.start()
    for _, sending in pipes:
        sending.close()
    try:
        return [receiving.recv() for receiving, _ in pipes]
    except EOFError:
        raise RuntimeError("a process of the measurement has failed") from None
    finally:
        for child in children:
            child.join(60)
            child.kill()


def _child(barrier: Barrier, sending: Connection, function: Callable[..., Any], *arguments: Any) -> None:
    barrier.wait(60)
    sending.send(function(*arguments))
