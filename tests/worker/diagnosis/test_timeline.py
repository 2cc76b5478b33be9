"""The timeline holds everything that a log reports, in the order in which it happened."""

from worker.diagnosis.log_file import Excerpt
from worker.diagnosis.timeline import EventKind, Log

LOG = """\
$ torchrun train.py
{'loss': 1.5, 'epoch': 0.1}
Traceback (most recent call last):
  File "/opt/train/a.py", line 1, in main
    go()
KeyError: 'a'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/opt/train/a.py", line 3, in main
    go()
RuntimeError: the moon is full
[Rank 1] Watchdog: ERROR
E0101 api.py:8] failed (exitcode: 1) local_rank: 1 (pid: 4) of binary: /usr/bin/python
"""


def timeline(text):
    return Log([Excerpt(1, text)]).timeline


def test_events_are_in_the_order_in_which_they_happened():
    kinds = [EventKind.START, EventKind.STEP, EventKind.EXCEPTION, EventKind.REPORT, EventKind.EXIT]
    assert [event.kind for event in timeline(LOG).events] == kinds


def test_an_exception_and_its_cause_are_one_event():
    (chain,) = [event.chain for event in timeline(LOG).events if event.chain]
    assert [link.last for link in chain.links] == [5, 10]
    assert timeline(LOG).endings == [chain]


def test_nothing_before_a_later_start_ended_the_run():
    again = timeline(LOG + "$ torchrun train.py\n")
    assert again.endings == []
    assert not again.failed


def test_the_launcher_names_the_rank_that_failed_first():
    assert timeline(LOG).root_rank == 1
