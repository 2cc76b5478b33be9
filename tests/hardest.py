"""The hardest inputs for a text of a length, and what a request with one costs the server."""

import asyncio
import gc
import json
import re
import time
from pathlib import Path

import httpx
import pytest
from web import ADDRESS, client

LONGEST_PAUSE = 0.5  # seconds of processor time between a request to /healthz and its answer
MOST_MEMORY = 100 * 2**20

PATTERNS = {
    "nested lists": ("[", "", "]"),
    "nested objects": ('{"a":', "1", "}"),
    "nested parentheses": ("(", "1", ")"),
    "nested blocks": ("{% if a %}", "", "{% endif %}"),
    "nested functions": ("lambda:", "1", ""),
    "unary minus": ("-", "1", ""),
    "not": ("not ", "a", ""),
    "unary operators of a template": ("{{ " + "-" * 200 + "1 }}", "", ""),
    "operators": ("1+", "1", ""),
    "powers": ("1**", "1", ""),
    "attributes": ("a.", "a", ""),
    "letters": ("a", "", ""),
    "blanks": (" ", "x", ""),
    "a comma and blanks": (", a=b" + " " * 200, "x", ""),
    "commas": (",", "", ""),
    "names": ("a,", "a", ""),
    "options": ("a=b,", "a=b", ""),
    "lines": ("\n", "x", ""),
    "keys": ("a: b\n", "", ""),
    "quotes": ('"', "", ""),
    "apostrophes": ("'", "", ""),
    "backslashes": ("\\", "", ""),
    "continued lines": ("--a b \\\n", "", ""),
    "equals signs": ("=", "", ""),
    "groups": ("(a*)*", "b", ""),
    "counted groups": ("(a{1,99}){1,99}", "b", ""),
    "variables": ("$A", "", ""),
    "substitutions": ("$((1+", "1", "))"),
    "definitions": ("A=$A$A\n", "", ""),
    "anchors": ("&a ", "x", ""),
    "dashes of a list": ("- ", "x", ""),
    "questions": ("? ", "x", ""),
    "digits": ("9", "", ""),
    "slashes": ("/", "", ""),
    "parents": ("../", "", ""),
    "wide characters": ("\N{GRINNING FACE}", "", ""),
    "combining characters": ("a\N{COMBINING ACUTE ACCENT}", "", ""),
    "letters that grow in lower case": ("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "", ""),
    "letters that grow in upper case": ("\N{LATIN SMALL LIGATURE FFI}", "", ""),
    "tracebacks": ('  File "a.py", line 1, in a\n', "ValueError: x", ""),
}  # fmt: skip
"""A unit, what stands behind its repetitions, and what closes each."""


def written(pattern, length):
    unit, middle, closing = PATTERNS[pattern]
    times = max((length - len(middle)) // len(unit + closing), 1)
    return (unit * times + middle + closing * times)[:length]


def wide_list(length):
    return json.dumps([*range(length // 8)])[:length]


def wide_object(length):
    return json.dumps({f"k{number}": number for number in range(length // 16)})


def wide_object_of_python(length):
    return "{" + "".join(f"{number}:1," for number in range(length // 8)) + "}"


def long_key(length):
    return json.dumps({"k" * (length - 8): 1})


def long_option(length):
    return "k" * (length - 2) + "=1"


def placeholders(length):
    return '{"a": ' + "[a|" * (length // 3)


def aliases(length):
    return "a: &a [" + "1," * (length // 4) + "]\nb: [" + "*a," * (length // 8) + "]"


BUILT = (wide_list, wide_object, wide_object_of_python, long_key, long_option, placeholders, aliases)


NAMES = (*PATTERNS, *(build.__name__ for build in BUILT))


def hard(name, length):
    """One of the hardest inputs, by its name."""
    return written(name, length) if name in PATTERNS else globals()[name](length)


def hardest(length):
    yield from ((name, hard(name, length)) for name in NAMES)


def one_of_hardest(number, length):
    """One of them for each number: the others are not made, which takes longer than a request."""
    name = NAMES[number % len(NAMES)]
    return [(name, hard(name, length))]


def status(name):
    """A figure of this process in bytes: VmRSS, or VmHWM, its peak."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


async def costs(api, asked):
    """The longest pause of /healthz during a request, in seconds of processor time; the growth of memory in bytes; its answer."""
    pauses, ended = [], asyncio.Event()

    async def probe():
        while not ended.is_set() or not pauses:
            before = time.process_time()
            assert (await api.get("/healthz")).status_code == 200
            pauses.append(time.process_time() - before)

    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    before = status("VmRSS")
    probing = asyncio.create_task(probe())
    await asyncio.sleep(0)
    try:
        answer = await api.request(**asked)
    finally:
        ended.set()
        await probing
    return max(pauses), status("VmHWM") - before, answer


def measured(requests):
    """What is beyond a limit, by the name of a request."""
    found = {}

    async def ask():
        transport = httpx.ASGITransport(client().app, client=("127.0.0.1", 5), raise_app_exceptions=False)
        options = {"base_url": ADDRESS, "headers": client().headers, "timeout": None}
        async with httpx.AsyncClient(transport=transport, **options) as api:
            await api.get("/healthz")
            for name, asked in requests:
                pause, memory, answer = await costs(api, asked)
                if pause > LONGEST_PAUSE or memory > MOST_MEMORY or answer.status_code >= 500:
                    found[name] = (f"{pause:.2f} s", memory >> 20, answer.status_code, answer.text[:200])

    gc.collect()
    gc.freeze()  # as app/server.py does: a collection of what other tests have left takes half a second
    try:
        asyncio.run(ask())
    finally:
        gc.unfreeze()
    return found


@pytest.fixture(name="offline")
def without_hub(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
