"""Renders prompts in a confined process with limits: a chat template is a program that comes with the model."""

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

from training.chat.template import too_long
from training.jail.confinement import confine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CPU_SECONDS, SECONDS = 5.0, 60.0
"""For one prompt: of CPU time, and in all, which also ends what Python cannot interrupt."""

MEMORY_BYTES = 2**30
"""Beyond what the process needs by itself."""


class TemplateProcess:
    """The process; it starts with the first prompt, and again when it has ended. Thread-safe."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        self._cpu_seconds = cpu_seconds
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._process: Any = None
        self._known: set[str] = set()

    def text(
        self,
        name: str,
        tokenizer: "PreTrainedTokenizerBase",
        messages: list[dict[str, Any]],
        arguments: Mapping[str, Any],
        tools: list[dict[str, Any]] | None,
    ) -> str:
        """A conversation up to the answer, as `training.chat.tokenizer.prompt_text`. `name` stands for the tokenizer.

        Raises:
            ValueError: what the template says, or which limit it exceeded.
        """
        request = name, tokenizer, messages, arguments, tools
        with self._lock:
            # It may have been killed for the memory that others take: the prompt is at fault when it ends a second time.
            answer = self._ask(*request) or self._ask(*request)
        if answer is None:
            raise ValueError("it ends the process that renders it, as too little memory does")
        is_text, text = answer
        if not is_text:
            raise ValueError(text)
        return text

    def _ask(self, name: str, tokenizer: "PreTrainedTokenizerBase", *given: Any) -> tuple[bool, str] | None:
        """What `_answer` returns in the process; None if the process has ended. Raises ValueError if it takes too long."""
        try:
            connection = self._connection or self._start()
            connection.send((name, None if name in self._known else tokenizer, *given))
            self._known.add(name)
            if connection.poll(SECONDS):
                return cast("tuple[bool, str]", connection.recv())
        except (EOFError, OSError):
            self._end()
            return None
        self._end()
        raise ValueError("it takes too much time")

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._cpu_seconds), name="templates", daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()  # its imports take seconds
        return self._connection

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection, self._known = None, set()


def _serve(connection: Connection, cpu_seconds: float) -> None:
    """Renders until the other side closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, _out_of_time)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.modules["torch"] = None  # type: ignore[assignment]  # tokenizers do not need it
    import transformers.utils.chat_template_utils  # noqa: F401

    confine("a chat template", [])
    tokenizers: dict[str, Any] = {}
    connection.send(None)
    while True:
        try:
            name, tokenizer, *given = connection.recv()
        except EOFError:
            return
        tokenizers[name] = tokenizer or tokenizers[name]
        connection.send(_answer(cpu_seconds, tokenizers[name], *given))


def _answer(
    cpu_seconds: float,
    tokenizer: "PreTrainedTokenizerBase",
    messages: list[dict[str, Any]],
    arguments: Mapping[str, Any],
    tools: list[dict[str, Any]] | None,
) -> tuple[bool, str]:
    """(True, text), or (False, the reason)."""
    from training.chat.tokenizer import prompt_text

    _limit_memory()
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        text = prompt_text(tokenizer, messages, arguments, tools)
    except Exception as error:  # a template can raise any exception
        return False, "it makes more text than fits in memory" if isinstance(error, MemoryError) else str(error)[:500]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    problem = too_long(text)
    return (False, problem.message) if problem else (True, text)


def _limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
        used = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, hard))


def _out_of_time(*_: Any) -> None:
    raise TimeoutError("it takes too much time")
