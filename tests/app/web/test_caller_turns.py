"""The threads of the server are shared: the requests of one caller take some of them, and /healthz has its own."""

import asyncio
import inspect
import re

import anyio.to_thread
import pytest
from web import client

from app.access import callers
from app.access.callers import Caller
from app.web.caller_turns import AT_ONCE, CallerTurns, turns
from app.web.middleware import is_endless, is_followed
from app.web.rest import runs


async def ask(app, name, path="/api/runs", sent=None):
    callers.begin(Caller(name))

    async def send(message):
        if sent is not None:
            sent.append(message["type"])

    await app({"type": "http", "path": path, "method": "GET"}, None, send)


def test_requests_of_a_caller_beyond_the_limit_wait_and_those_of_others_do_not():
    async def scenario():
        begun, release = [], asyncio.Event()

        async def app(_scope, _receive, send):
            begun.append(callers.current().name)
            await release.wait()
            await send({"type": "http.response.start"})

        served = CallerTurns(app)
        asked = [asyncio.create_task(ask(served, "eve")) for _ in range(AT_ONCE + 5)]
        asked += [asyncio.create_task(ask(served, "bob"))]
        asked += [
            asyncio.create_task(ask(served, "eve", path))
            for path in ("/healthz", "/v1/completions", "/api/runs/r/stream")
        ]
        while len(begun) < AT_ONCE + 4:
            await asyncio.sleep(0)
        assert (begun.count("eve"), begun.count("bob")) == (AT_ONCE + 3, 1)
        release.set()
        await asyncio.gather(*asked)
        assert begun.count("eve") == AT_ONCE + 8

    asyncio.run(scenario())
    assert not turns._free and not turns._wanted


def test_uploads_that_arrive_slowly_take_no_turns_and_have_one_once_they_are_there():
    async def scenario():
        arrived, release, working = asyncio.Event(), asyncio.Event(), []

        async def app(_scope, receive, send):
            while (await receive()).get("more_body"):
                pass
            working.append("upload")
            await release.wait()
            await send({"type": "http.response.start"})
            assert (await receive())["type"] == "http.disconnect"

        async def upload():
            messages = iter([{"type": "http.request", "more_body": True}, {"type": "http.request"}])

            async def receive():
                if (message := next(messages, {"type": "http.disconnect"})).get("more_body") is None:
                    await arrived.wait()
                return message

            async def send(_message):
                pass

            callers.begin(Caller("eve"))
            await served({"type": "http", "path": "/gradio_api/upload", "method": "POST"}, receive, send)

        async def page(_scope, _receive, send):
            await send({"type": "http.response.start"})

        served = CallerTurns(app)
        uploads = [asyncio.create_task(upload()) for _ in range(AT_ONCE + 5)]
        shown = asyncio.create_task(ask(CallerTurns(page), "eve"))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert shown.done() and working == []  # it does not wait for them
        arrived.set()
        while len(working) < AT_ONCE:
            await asyncio.sleep(0)
        assert len(working) == AT_ONCE
        release.set()
        await asyncio.gather(*uploads)

    asyncio.run(scenario())
    assert not turns._free and not turns._wanted


def test_a_turn_ends_when_the_answer_begins_and_when_it_fails():
    async def scenario():
        release, sent = asyncio.Event(), []

        async def slow_file(_scope, _receive, send):
            await send({"type": "http.response.start"})
            await release.wait()
            await send({"type": "http.response.body"})

        async def failing(_scope, _receive, _send):
            raise ValueError("a mistake of ours")

        served = CallerTurns(slow_file)
        asked = [asyncio.create_task(ask(served, "eve", sent=sent)) for _ in range(3 * AT_ONCE)]
        while len(sent) < 3 * AT_ONCE:
            await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*asked)
        served.app = failing
        for _ in range(2 * AT_ONCE):
            with pytest.raises(ValueError, match="mistake"):
                await ask(served, "eve")

    asyncio.run(scenario())


def test_each_route_that_sends_events_is_known_as_a_stream():
    """Streams take no turn for long, and end with the token of their caller."""
    path = {re.sub(r"{\w+}", "x", route.path) for route in _routes(client().app) if _sends_events(route.endpoint)}
    assert {"/api/runs/x/live", "/api/runs/x/stream", "/api/pages/run"} <= path
    scopes = [{"type": "http", "path": one} for one in path]
    assert [scope["path"] for scope in scopes if not (is_endless(scope) or is_followed(scope))] == []


def _routes(app):
    routers = (getattr(one, "original_router", one) for one in app.routes)
    return [route for router in routers for route in getattr(router, "routes", [router]) if hasattr(route, "endpoint")]


def _sends_events(endpoint):
    source = inspect.getsource(inspect.unwrap(endpoint))
    return "EventSourceResponse(" in source or 'media_type="text/event-stream"' in source


def test_healthz_answers_while_requests_use_all_other_threads(home):
    async def scenario():
        limiter = anyio.to_thread.current_default_thread_limiter()
        for number in range(int(limiter.total_tokens)):
            limiter.acquire_on_behalf_of_nowait(number)
        return await runs.health()

    assert asyncio.run(scenario()).status == "ok"
