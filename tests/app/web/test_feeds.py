"""The stream of a live run: only what is new, one reader for all viewers, and going on after the last event id."""

import asyncio
import json
import signal
import time

import pytest
from forked_server import server
from patience import ended
from played_run import GIB, PlayedRun

from app import texts
from app.access import callers
from app.access.identity import Identity
from app.documents.live import reader as live
from app.documents.live.reader import Cursor, Reader
from app.web import live as streams
from app.web import middleware
from app.web.live import Feeds, encoded
from training.run_folder.events import CheckpointSaved, Metrics, Note, PhaseStarted, Planned, Resumed
from worker.settings import get_settings
from worker.store import accounts, database, runs, shares, sight

NAMES = ("learning_rate", "grad_norm", "tokens_per_second", "tokens", "epoch", "accuracy")


def at(step, **values):
    return Metrics(step=step, time=1000.0 + step, values={"loss": 1.0 / step, **values})


def planned(steps):
    return Planned(
        total_steps=steps, start_step=0, train_rows=19, eval_rows=0, skipped_rows=0, truncated_rows=0, world_size=1,
        engine="LlamaForCausalLM", zero_stage=None, precision="fp32", trainable_parameters=10, total_parameters=1000,
        target_modules=["q_proj"],
    )  # fmt: skip


def of_rank(step, rank):
    values = dict.fromkeys(("memory_allocated", "memory_reserved", "memory_peak", "host_rss"), GIB + step)
    return Metrics(step=step, rank=rank, time=1000.0 + step, values=values)


@pytest.fixture
def run(database):
    return PlayedRun().claim().report(PhaseStarted(phase="training"))


def reader(run, cursor=None):
    """A reader that has read all there is."""
    created = Reader(run.id, cursor)
    created.read()
    return created


def test_the_first_tick_has_all_facts_and_none_of_the_past(run):
    run.report(at(1), at(2)).prints("one")
    news = Reader(run.id, None).read()
    assert news.keys() == {"facts"}
    assert (news["facts"]["phase"], news["facts"]["loss"]) == ("training", "0.5000")


def test_a_tick_without_news_is_empty(run):
    run.report(at(1))
    assert reader(run).read() == {}


def test_a_tick_has_only_the_new_points_events_lines_and_changed_facts(run):
    run.report(at(1)).prints("old")
    watching = reader(run)
    run.report(at(2, tokens=64.0), CheckpointSaved(step=2, path="checkpoint-2", bytes=2**20)).prints("new")
    news = watching.read()
    assert news["points"]["step"] == [2]
    assert news["points"]["values"] == {"loss": [0.5]}
    assert news["points"]["tokens"] == [64]
    assert [event[4] for event in news["events"]] == ["Checkpoint at step 2 (1.0 MiB)."]
    assert [line[2] for line in news["log"]] == ["new"]
    assert set(news["facts"]) == {"loss"}


def test_the_expected_end_does_not_move_with_the_clock_while_no_step_ends(run, monkeypatch):
    run.report(planned(100), *[at(step) for step in range(1, 11)])
    watching = reader(run)
    until, now = watching.facts["until"], time.time
    assert until is not None
    monkeypatch.setattr(time, "time", lambda: now() + 50)
    assert watching.read() == {}
    monkeypatch.setattr(time, "time", lambda: now() + 70)
    assert watching.read() == {"facts": {"until": pytest.approx(until + 70, abs=2)}}
    monkeypatch.setattr(time, "time", lambda: now() + 10)
    run.report(at(11))
    assert watching.read()["facts"]["until"] == pytest.approx(until + 9, abs=2)


def test_a_metric_that_is_missing_at_a_step_is_empty_and_nan_is_null(run):
    watching = reader(run)
    run.report(at(1, grad_norm=float("nan")), at(2), at(3, eval_loss=2.0))
    assert watching.read()["points"]["values"] == {
        "loss": [1, 0.5, 0.333333],
        "grad_norm": [None, "", ""],
        "eval_loss": ["", "", 2],
    }


def test_a_tick_at_3000_steps_has_at_most_2000_bytes(run):
    run.report(*[at(step, **dict.fromkeys(NAMES, 0.000123456 * step)) for step in range(1, 3001)])
    run.report(*[of_rank(step, rank) for rank in range(4) for step in range(10, 3001, 10)])
    watching = reader(run)
    run.report(*[at(step, **dict.fromkeys(NAMES, 0.000123456 * step)) for step in range(3001, 3041)])
    run.report(*[of_rank(3040, rank) for rank in range(4)], CheckpointSaved(step=3040, path="c", bytes=5))
    run.prints(*[f"step {step} of 10000" for step in range(3001, 3041)])
    news = watching.read()
    assert 1 <= len(news["points"]["step"]) <= live.MOST_STEPS
    assert len(encoded(news, watching.cursor)) <= 2000


def test_a_tick_without_points_has_at_most_1000_bytes(run):
    run.report(planned(3000), *[at(step, **dict.fromkeys(NAMES, 0.000123456 * step)) for step in range(1, 3001)])
    run.prints("step 3000 of 3000")
    watching = Reader(run.id, Cursor(0, 0, 3000))
    news = watching.read()
    assert len(news["facts"]) > 10 and len(news["log"]) == 1 and "points" not in news
    assert len(encoded(news, watching.cursor)) <= 1000


def test_many_new_steps_are_summed_up_with_their_extremes(run):
    watching = reader(run)
    run.report(*[Metrics(step=step, values={"loss": 50.0 if step == 7 else 1.0}) for step in range(1, 13)])
    points = watching.read()["points"]
    assert points["step"] == [2, 4, 6, 8, 10, 12]
    assert points["values"]["loss"][3] == [25.5, 1, 50]


def test_64_ranks_are_summed_up_in_a_small_tick(run):
    run.report(*[of_rank(1, rank) for rank in range(64)])
    watching = reader(run)
    run.report(*[of_rank(2, rank) for rank in range(64)])
    news = watching.read()
    ((median, low, high),) = news["points"]["values"]["host_rss"]
    assert median == low == high == pytest.approx(GIB, rel=1e-5)
    assert len(encoded(news, watching.cursor)) <= 2000


def test_more_log_lines_than_fit_are_left_to_the_page(run):
    watching = reader(run)
    run.prints(*["a long line " * 10 for _ in range(20)])
    assert watching.read() == {"log": None}


def test_a_reader_begins_at_the_given_cursor(run):
    run.report(at(1))
    cursor = reader(run).cursor
    run.report(at(2), Note(message="hello")).prints("late")
    news = Reader(run.id, cursor).read()
    assert news["points"]["step"] == [2]
    assert [event[4] for event in news["events"]] == ["hello"]
    assert [line[2] for line in news["log"]] == ["late"]


def test_a_page_that_lacks_too_much_loads_all_anew(run):
    run.report(*[at(step) for step in range(1, 1000)])
    assert Reader(run.id, Cursor(0, 0, 0)).read()["reload"] is True


def test_a_run_that_goes_back_to_a_checkpoint_makes_the_page_load_all_anew(run):
    run.report(*[at(step) for step in range(1, 8)])
    watching = reader(run)
    run.report(Resumed(step=3, path="checkpoint-3", rejected=[]))
    assert watching.read()["reload"] is True
    run.report(at(4))
    assert watching.read()["points"]["step"] == [4]


@pytest.mark.parametrize("text", ["", "1-2", "a-b-c", "1-2-x", "--", "1-2-3-4"])
def test_an_unusable_event_id_is_ignored(text):
    assert Cursor.parse(text) is None


async def message_of(stream):
    """The next message that is no comment: its id and its data."""
    async for chunk in stream:
        lines = dict(line.split(": ", 1) for line in chunk.decode().splitlines() if ": " in line)
        if "data" in lines:
            return lines.get("id"), json.loads(lines["data"])
    raise AssertionError("The stream has ended.")


def test_50_viewers_cost_one_reading_and_all_get_the_same(run, monkeypatch):
    monkeypatch.setattr(streams, "SECONDS", 0.05)
    readings = []
    read = Reader.read
    monkeypatch.setattr(Reader, "read", lambda self: readings.append(self) or read(self))

    async def watch():
        hub = Feeds()
        streams = [hub.stream(run.id, None) for _ in range(50)]
        await asyncio.gather(*[message_of(stream) for stream in streams])
        await asyncio.to_thread(run.report, at(1))
        messages = await asyncio.gather(*[message_of(stream) for stream in streams])
        for stream in streams:
            await stream.aclose()
        count = len(readings)
        await asyncio.sleep(0.3)
        return messages, count

    messages, count = asyncio.run(watch())
    assert {json.dumps(message) for message in messages} == {json.dumps(messages[0])}
    assert messages[0][1]["points"]["step"] == [1]
    assert len(set(readings)) == 1
    assert len(readings) <= count + 1  # nobody watches: nothing is read


def test_a_feed_goes_on_for_those_who_see_the_run_and_ends_for_others(run, monkeypatch):
    """Whoever was first: the reader of a run has the limits of none of its viewers."""
    monkeypatch.setattr(streams, "SECONDS", 0.02)
    with database.write() as session:
        runs.get(session=session, run_id=run.id).owner = "alice"
        shares.add(session=session, kind="run", object_id=run.id, user="bob")

    async def viewed_by(hub, name):
        sight.limit_to(name)
        stream = hub.stream(run.id, None)
        await message_of(stream)
        return stream

    async def watch():
        hub = Feeds()
        of_bob = await asyncio.create_task(viewed_by(hub, "bob"))
        of_alice = await asyncio.create_task(viewed_by(hub, "alice"))
        with database.write() as session:
            shares.drop(session=session, kind="run", object_id=run.id, user="bob")
        told = (await message_of(of_bob))[1]
        rest = [part async for part in of_bob]
        await asyncio.to_thread(run.report, at(1))
        news = (await message_of(of_alice))[1]
        await of_alice.aclose()
        return told, rest, news

    told, rest, news = asyncio.run(watch())
    assert (told, rest) == ({"gone": True}, [])
    assert news["points"]["step"] == [1]


def test_the_stream_of_a_deleted_run_ends(run, monkeypatch):
    monkeypatch.setattr(streams, "SECONDS", 0.02)

    async def watch():
        stream = Feeds().stream(run.id, None)
        await message_of(stream)
        with database.write() as session:
            session.delete(runs.get(session=session, run_id=run.id))
        return (await message_of(stream))[1], [part async for part in stream]

    assert asyncio.run(watch()) == ({"gone": True}, [])


def test_each_viewer_gets_the_facts_in_the_language_of_the_page(run, monkeypatch):
    monkeypatch.setattr(streams, "SECONDS", 0.02)

    async def first_message(hub, code):
        texts.use(code)
        return await message_of(hub.stream(run.id, None))

    async def watch():
        hub = Feeds()
        return await asyncio.gather(*[asyncio.create_task(first_message(hub, code)) for code in ("de", "")])

    labels = [message["facts"]["speed_label"] for _id, message in asyncio.run(watch())]
    assert labels == ["Geschwindigkeit", "Speed"]


def test_a_viewer_that_connects_again_gets_what_it_missed(run, monkeypatch):
    monkeypatch.setattr(streams, "SECONDS", 0.02)

    async def watch():
        hub = Feeds()
        first, second = hub.stream(run.id, None), hub.stream(run.id, None)
        (cursor, _), _ = await message_of(first), await message_of(second)
        await first.aclose()
        await asyncio.to_thread(run.report, at(1))
        await message_of(second)
        again = hub.stream(run.id, Cursor.parse(cursor))
        message = await message_of(again)
        await second.aclose()
        await again.aclose()
        return message

    assert asyncio.run(watch())[1]["points"]["step"] == [1]


@pytest.mark.slow
def test_a_server_that_starts_again_continues_after_the_last_event_id(home):
    run = PlayedRun().claim().report(at(1))
    with server(home) as served:
        last = event_id(served, run)
    run.report(at(2))
    with server(home) as served:
        assert b'"step":[2]' in received(served, run, last)
        served.process.send_signal(signal.SIGTERM)
        assert ended(served.process) in (0, -signal.SIGTERM)


def event_id(served, run):
    lines = received(served, run).decode().splitlines()
    return next(line.removeprefix("id: ") for line in lines if line.startswith("id: "))


def received(served, run, last=""):
    """The stream's first message, over a real connection."""
    request = f"GET /api/runs/{run.id}/live HTTP/1.1\r\nHost: HOST\r\nLast-Event-ID: {last}\r\n\r\n"
    with served.connect(request.encode()) as connection:
        body = b""
        while b"data: " not in body or not body.endswith(b"\r\n"):
            part = connection.recv(4096)
            assert part, body
            body += part
        return body


async def log_of(stream):
    """The lines of the next message that has some."""
    while not (lines := (await message_of(stream))[1].get("log")):
        pass
    return lines


@pytest.mark.parametrize("first", ["", "0-0-0", "999999999-999999999-999999999"])
def test_no_viewer_s_event_id_decides_what_others_get(run, monkeypatch, first):
    run.report(at(1))
    monkeypatch.setattr(streams, "SECONDS", 0.02)

    async def watch():
        hub = Feeds()
        odd, usual = hub.stream(run.id, Cursor.parse(first)), hub.stream(run.id, None)
        heard = [(await message_of(odd))[1], (await message_of(usual))[1]]
        await asyncio.to_thread(run.prints, "a line")
        return heard, [await log_of(odd), await log_of(usual)]

    (of_odd, of_usual), lines = asyncio.run(watch())
    assert [[line[2] for line in log] for log in lines] == [["a line"], ["a line"]]
    assert ("reload" in of_odd, "reload" in of_usual) == (bool(first) and first != "0-0-0", False)


def test_a_reading_that_fails_is_said_and_tried_again(run, monkeypatch):
    run.report(at(1))
    monkeypatch.setattr(streams, "SECONDS", 0.02)
    read, failures = Reader.read, iter([None, ValueError("once"), ValueError("twice")])

    def failing(self):
        if error := next(failures, None):
            raise error
        return read(self)

    monkeypatch.setattr(Reader, "read", failing)

    async def watch():
        stream = Feeds().stream(run.id, None)
        first = (await message_of(stream))[1]
        await asyncio.to_thread(run.report, at(2))
        return first, (await message_of(stream))[1], (await message_of(stream))[1]

    first, trouble, after = asyncio.run(watch())
    assert trouble == {"unreachable": True}
    assert after["points"]["step"] == [2]
    assert after["facts"].keys() == first["facts"].keys()


FOLLOWED = (
    "/api/runs/r/live", "/api/runs/r/stream", "/api/pages/run", "/gradio_api/queue/data", "/gradio_api/heartbeat/a"
)  # fmt: skip


@pytest.mark.parametrize("withdraw", [accounts.rotate, accounts.remove])
@pytest.mark.parametrize("path", FOLLOWED)
def test_what_never_ends_ends_soon_after_the_token_that_began_it(home, monkeypatch, path, withdraw):
    monkeypatch.setattr(middleware, "IDENTITY_SECONDS", 0.01)
    with database.write() as session:
        token = accounts.add(session=session, name="alice")
    scope = {"type": "http", "path": path, "headers": [(b"authorization", f"Bearer {token}".encode())]}

    async def endless(_scope, receive, send):
        await send(await receive())

    async def follow():
        identity, sent = Identity(get_settings()), []
        callers.begin(await identity.of(scope))

        async def keep(message):
            sent.append(message)

        served = middleware.Streams(endless, asyncio.Event(), identity)
        following = asyncio.create_task(served(scope, asyncio.Event().wait, keep))
        await asyncio.sleep(0.1)
        assert not following.done()  # the token still stands for alice
        with database.write() as session:
            withdraw(session=session, name="alice")
        await following
        return sent

    with sight.everything():
        assert asyncio.run(follow()) == [{"type": "http.disconnect"}]
