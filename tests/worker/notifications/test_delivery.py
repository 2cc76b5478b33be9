"""Notifications: written once with the event, delivered once, retried, given up; real servers receive them."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest
from environment import use
from held_runs import claim
from receivers import hooks, mailbox
from sqlmodel import col, select, update

from training.run_folder import events as records
from worker.notifications import delivery
from worker.notifications import messages as messages_of
from worker.settings import get_settings
from worker.store import accounts, channels, claims, history, outbox, runs
from worker.store import database as db
from worker.store.tables import ChannelKind, Event, Notification, NotificationChannel, Run, Status, WebhookFormat

ALL = ["finished", "failed", "stopped", "diverged"]
ERROR = {
    "message": "CUDA out of memory.",
    "fix": "Resume with micro_batch_size 1.",
    "phase": "training",
    "rank": 0,
    "log_tail": "a long log",
    "diagnosis": {
        "title": "An unknown column.",
        "explanation": "An unknown column. The file has no column text.",
        "fix": ["Map the column body.", "Another fix."],
        "changes": {},
    },
}


@pytest.fixture
def receiver():
    with hooks() as running:
        yield running


def listen(receiver, *, events=ALL, owner="local", form=WebhookFormat.JSON, everyone=False):
    with db.write() as session:
        return channels.add(
            session=session, owner=owner, kind=ChannelKind.WEBHOOK, address=receiver.url, events=events, format=form,
            everyone=everyone,
        )  # fmt: skip


def end(run, status=Status.FINISHED, **values):
    claimed = claim(run.id)
    with db.write() as session:
        assert claims.finish(session=session, run_id=run.id, attempt=claimed.attempt, status=status, **values)


def messages():
    with db.read() as session:
        return list(session.exec(select(Notification).order_by(col(Notification.id))))


def become_due():
    with db.write() as session:
        session.exec(update(Notification).values(next_try_at=0.0))


def deliver_all():
    while delivery.deliver_due():
        pass


def test_a_finished_run_is_told_with_its_results(database, new_run, receiver, monkeypatch):
    monkeypatch.setenv("LATHE_PUBLIC_URL", "https://lathe.example/")
    get_settings.cache_clear()
    listen(receiver)
    run = new_run(name="first")
    with db.write() as session:
        session.exec(update(Run).values(step=40, total_steps=40, final_loss=0.25, best_loss=0.5))
    end(run)
    deliver_all()
    (told,) = receiver.documents
    assert (told["event"], told["run"]["id"], told["run"]["status"]) == ("finished", run.id, "finished")
    assert (told["run"]["final_loss"], told["run"]["best_loss"]) == (0.25, 0.5)
    assert told["run"]["seconds"] >= 0 and told["cause"] is None
    assert told["url"] == f"https://lathe.example/run?id={run.id}"
    assert told["text"] == told["content"] and "loss 0.2500" in told["text"] and told["text"].endswith(told["url"])
    assert [(one.delivered, one.tries) for one in messages()] == [(True, 1)]


def test_a_failed_run_is_told_with_its_cause_and_the_first_fix(database, new_run, receiver):
    listen(receiver)
    end(new_run(), Status.FAILED, error=ERROR)
    deliver_all()
    (told,) = receiver.documents
    assert (told["event"], told["cause"]) == ("failed", "An unknown column")
    assert (told["message"], told["fix"]) == ("The file has no column text.", "Map the column body.")
    assert "First fix: Map the column body." in told["text"] and "a long log" not in str(told)


def test_a_loss_that_is_not_finite_is_told_once(database, new_run, receiver):
    listen(receiver, events=["diverged"])
    run = claim(new_run().id)
    for step in (1, 2):
        losses = [records.Metrics(step=step, values={"loss": float("nan")}, rank=None)]
        with db.write() as session:
            assert history.apply(
                session=session, run_id=run.id, attempt=run.attempt, events=losses, new_offset=step * 100
            )
    deliver_all()
    assert [told["event"] for told in receiver.documents] == ["diverged"]
    assert receiver.documents[0]["fix"] == "Lower the learning rate or lengthen the warmup."


def test_only_chosen_events_of_own_runs_are_told_unless_a_channel_is_for_everyone(database, new_run, receiver):
    listen(receiver, events=["failed"])
    listen(receiver, owner="anna")
    listen(receiver, owner="carol", everyone=True)
    end(new_run())
    assert len(messages()) == 1
    deliver_all()
    assert messages()[0].reason  # carol has no account, so her channel may not use an address of this machine


def test_a_queued_run_that_is_stopped_is_told(database, new_run, receiver):
    listen(receiver, events=["stopped"])
    with db.write() as session:
        runs.request_stop(session=session, run_id=new_run().id)
    deliver_all()
    assert [told["event"] for told in receiver.documents] == ["stopped"]


def test_an_event_is_written_once_even_if_it_is_reported_twice(database, new_run, receiver):
    listen(receiver)
    run = new_run()
    for _ in range(2):
        with db.write() as session:
            outbox.enqueue(session=session, run=session.get_one(Run, run.id), event=Event.FAILED)
    assert len(messages()) == 1


def test_an_end_that_is_rolled_back_is_not_told(database, new_run, receiver):
    listen(receiver)
    claimed = claim(new_run().id)
    with pytest.raises(RuntimeError), db.write() as session:
        claims.finish(session=session, run_id=claimed.id, attempt=claimed.attempt, status=Status.FINISHED)
        raise RuntimeError
    assert messages() == []


def test_a_damaged_channel_gets_nothing_and_the_others_their_messages(database, new_run, receiver, caplog):
    damaged = listen(receiver)
    with db.write() as session:
        session.exec(update(NotificationChannel).values(events=5))  # no list: as if a later version had written it
    whole = listen(receiver, everyone=True)
    end(new_run())
    assert [message.channel_id for message in messages()] == [whole.id]
    assert f"{damaged.id} is left out: events (Input should be a valid list) cannot be read." in caplog.text


def test_a_message_that_cannot_be_written_does_not_keep_the_run_from_ending(
    database, new_run, receiver, caplog, monkeypatch
):
    channel = listen(receiver)
    monkeypatch.setattr(outbox, "_snapshot", lambda run: object())  # no JSON
    run = new_run()
    end(run)
    with db.read() as session:
        assert session.get_one(Run, run.id).status is Status.FINISHED
    assert messages() == [] and f"no notification of finished for run {run.id}" in caplog.text and channel.id


def test_two_deliverers_send_each_message_once(database, new_run, receiver):
    listen(receiver)
    for _ in range(12):
        end(new_run())
    deliverers = [threading.Thread(target=deliver_all) for _ in range(3)]
    for deliverer in deliverers:
        deliverer.start()
    for deliverer in deliverers:
        deliverer.join()
    assert len(receiver.documents) == 12
    assert len({told["run"]["id"] for told in receiver.documents}) == 12
    assert all(one.delivered and one.tries == 1 for one in messages())


def test_a_failed_try_is_repeated_later_with_the_same_key(database, new_run, receiver, monkeypatch):
    monkeypatch.setattr(outbox, "RETRY_SECONDS", (3600.0,) * 7)  # is not due however slow this machine is
    listen(receiver)
    receiver.statuses += [500, 503]
    end(new_run())
    deliver_all()
    (failed,) = messages()
    assert failed.done_at is None and failed.next_try_at > failed.created_at + 5
    assert failed.reason == "127.0.0.1 answered with status 500: said by the receiver"
    assert not delivery.deliver_due()  # not before it is due
    for _ in range(2):
        become_due()
        deliver_all()
    (sent,) = messages()
    assert (sent.delivered, sent.tries, sent.reason) == (True, 3, "")
    assert len({headers["Idempotency-Key"] for _, headers, _ in receiver.requests}) == 1


def test_a_receiver_can_ask_to_wait(database, new_run, receiver):
    listen(receiver)
    receiver.statuses.append(429)
    receiver.headers["Retry-After"] = "600"
    end(new_run())
    deliver_all()
    (waiting,) = messages()
    assert waiting.next_try_at > waiting.created_at + 500


@pytest.mark.parametrize("status", [404, 302])
def test_a_refusal_is_final(database, new_run, receiver, status):
    listen(receiver)
    receiver.statuses.append(status)
    end(new_run())
    deliver_all()
    (refused,) = messages()
    assert refused.done_at is not None and not refused.delivered and str(status) in refused.reason


def test_a_message_is_given_up_after_the_last_try(database, new_run, receiver):
    listen(receiver)
    receiver.statuses += [500] * 20
    end(new_run())
    for _ in range(10):
        become_due()
        deliver_all()
    (given_up,) = messages()
    assert given_up.done_at is not None and not given_up.delivered
    assert len(receiver.requests) == len(outbox.RETRY_SECONDS) + 1


def test_a_result_after_the_claim_has_ended_changes_nothing(database, new_run, receiver):
    listen(receiver)
    end(new_run())
    with db.write() as session:
        first = outbox.claim(session=session, message_id=messages()[0].id)
        assert outbox.claim(session=session, message_id=first.id) is None
    become_due()
    with db.write() as session:
        second = outbox.claim(session=session, message_id=first.id)
        assert not outbox.delivered(session=session, message=first)
        assert outbox.delivered(session=session, message=second)


KILLED = """
import os, signal
from worker.notifications import delivery, http_post
sent = http_post.post
def post(*arguments):
    if os.environ["KILL"] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    sent(*arguments)
delivery.http_post.post = post
delivery.deliver_due()
"""


@pytest.mark.slow
def test_a_message_survives_a_killed_deliverer(home, new_run_here, receiver):
    listen(receiver)
    end(new_run_here())
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False, env={**os.environ, "KILL": "before"})
    assert killed.returncode == -signal.SIGKILL and receiver.requests == []
    deliver_all()
    assert receiver.requests == []  # still claimed by the killed process
    become_due()  # the claim ends
    deliver_all()
    assert len(receiver.requests) == 1 and messages()[0].delivered


@pytest.fixture
def new_run_here(home):
    from training.config.run_config import RunConfig

    def queue():
        with db.write() as session:
            return runs.create(session=session, config=RunConfig(model="m", data="d"), dataset_id=None)

    return queue


def test_chat_programs_get_the_field_that_they_expect(home, new_run_here, receiver):
    for form in (WebhookFormat.SLACK, WebhookFormat.DISCORD, WebhookFormat.NTFY):
        with db.write() as session:
            channels.add(
                session=session, owner="local", kind=ChannelKind.WEBHOOK, address=f"{receiver.url}/{form}", events=ALL,
                format=form,
            )  # fmt: skip
    end(new_run_here(), Status.FAILED, error=ERROR)
    deliver_all()
    bodies = {path.rpartition("/")[2]: (headers, body) for path, headers, body in receiver.requests}
    assert b'{"text": "m on d failed' in bodies["slack"][1]
    assert b'{"content": "m on d failed' in bodies["discord"][1]
    headers, text = bodies["ntfy"]
    assert text.startswith(b"An unknown column") and headers["Title"] == "m on d failed"


def test_the_log_and_the_reason_never_hold_the_url(home, new_run_here, receiver, caplog):
    listen(receiver)
    receiver.statuses.append(404)
    end(new_run_here())
    with caplog.at_level(logging.DEBUG):
        deliver_all()
    assert "was not sent" in caplog.text
    assert "verysecretpart" not in caplog.text + messages()[0].reason


def test_an_unreachable_receiver_is_named(home, new_run_here, receiver):
    with db.write() as session:
        channels.add(
            session=session, owner="local", kind=ChannelKind.WEBHOOK, address="http://127.0.0.1:9/x", events=ALL
        )
    end(new_run_here())
    deliver_all()
    assert "127.0.0.1 could not be reached" in messages()[0].reason and messages()[0].done_at is None


def test_e_mail_is_sent_through_the_mail_server_of_the_installation(home, new_run_here, monkeypatch):
    with mailbox(refused="gone@example.org") as box:
        use(monkeypatch, DATA_DIR=str(home), SMTP_URL=f"smtp://127.0.0.1:{box.port}", SMTP_FROM="Lathe <l@example.org>")
        for address in ("anna@example.org", "gone@example.org"):
            with db.write() as session:
                channels.add(session=session, owner="local", kind=ChannelKind.EMAIL, address=address, events=ALL)
        end(new_run_here(), Status.FAILED, error=ERROR)
        deliver_all()
    (mail,) = box.messages
    assert (mail["To"], mail["From"], mail["Subject"]) == ("anna@example.org", "Lathe <l@example.org>", "m on d failed")
    text, html = (part.get_payload(decode=True).decode() for part in mail.get_payload())
    assert "Map the column body." in text and "<p>First fix: Map the column body.</p>" in html
    refused = next(one for one in messages() if not one.delivered)
    assert refused.done_at is not None and "550 no such mailbox" in refused.reason


def test_without_a_mail_server_the_reason_names_the_variable(home, new_run_here):
    with db.write() as session:
        channel = channels.add(
            session=session, owner="local", kind=ChannelKind.EMAIL, address="a@example.org", events=ALL
        )
    assert "LATHE_SMTP_URL is not set" in delivery.send_test(channel.id).reason


def test_a_removed_account_is_told_nothing_more(database, new_run, receiver):
    with db.write() as session:
        accounts.add(session=session, name="anna", admin=True)
    channel = listen(receiver, owner="anna", everyone=True)
    end(new_run())
    with db.write() as session:
        accounts.remove(session=session, name="anna")
        assert channels.of_owner(session=session, owner="anna") == []
    deliver_all()
    assert receiver.requests == [] and messages() == [] and channel.id


def test_old_messages_are_forgotten(database, new_run, receiver):
    listen(receiver)
    end(new_run())
    with db.write() as session:
        session.exec(update(Notification).values(done_at=1000.0))
        outbox.forget_old(session=session)
    assert messages() == []


def test_a_run_s_name_calls_nobody_and_adds_no_header(home):
    run = {"id": "r1", "name": "<!channel> <b>a</b>\r\nX-Harm: b\x1b[2J", "status": "finished"}
    message = messages_of.of_run(Event.FINISHED, run, None, get_settings())
    _, slack = messages_of.body(message, WebhookFormat.SLACK, "key")
    assert json.loads(slack)["text"].startswith("&lt;!channel&gt; &lt;b&gt;a&lt;/b&gt; X-Harm: b [2J finished\n")
    headers, _ = messages_of.body(message, WebhookFormat.NTFY, "key")
    assert headers["Title"] == message.title == "<!channel> <b>a</b> X-Harm: b [2J finished"
    assert "<b>" not in message.html
