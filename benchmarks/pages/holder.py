"""Opens many connections to a server, in a process of its own, and counts what becomes of them.

The first line of the input is an order as JSON: address, requests, uid. The second opens the connections, the third closes them.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401  asyncio imports it late, when another user may not read Python's folder
import contextlib
import json
import os
import resource
import sys
from collections import Counter

_SECONDS = 10.0  # for what is still being opened at the end


def main() -> None:
    """Holds the connections of one order, and prints the counts of "kept", "refused" (with 429 or 503) and "closed"."""
    order = json.loads(sys.stdin.readline())
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
    if order["uid"] is not None:
        os.setuid(order["uid"])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asyncio.run(_hold(order["address"], order["requests"]))), flush=True)


async def _hold(address: str, requests: list[str]) -> dict[str, int]:
    host, _, port = address.removeprefix("http://").partition(":")
    outcomes: Counter[str] = Counter()
    leaving = asyncio.Event()

    async def hold(sent: str) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent.encode())
            reading = asyncio.ensure_future(_read(reader))
            await asyncio.wait((reading, asyncio.ensure_future(leaving.wait())), return_when=asyncio.FIRST_COMPLETED)
            outcomes[reading.result() if reading.done() else "kept"] += 1
            reading.cancel()
            writer.close()

    crowd = [asyncio.create_task(hold(sent)) for sent in requests]
    await asyncio.to_thread(sys.stdin.readline)
    leaving.set()
    await asyncio.wait(crowd, timeout=_SECONDS)
    return outcomes


async def _read(reader: asyncio.StreamReader) -> str:
    """Reads until the server closes the connection or refuses the request."""
    with contextlib.suppress(OSError):
        if (await reader.read(65536)).startswith((b"HTTP/1.1 429", b"HTTP/1.1 503")):
            return "refused"
        while await reader.read(65536):
            pass
    return "closed"


if __name__ == "__main__":
    main()
