"""No answer has more of a log, of events or of samples than fits in memory."""

from training.run_folder.events import Note, SampleDrawn
from worker.store import database, history, long_rows, samples
from worker.store.samples import Wanted

USUAL = {"group": 0, "row": 0, "file": "", "prompt": "p", "expected": "", "tokens": 1, "ended": True, "scores": {}}


def test_long_rows_are_returned_in_parts(new_run, monkeypatch):
    monkeypatch.setattr(long_rows, "MOST_CHARACTERS", 25)
    run = new_run()
    drawn = [
        SampleDrawn(step=step, sample=0, text="a" * 9, reward=None, advantage=None, **USUAL) for step in range(1, 6)
    ]
    with database.write() as session:
        history.append_log(
            session=session, run_id=run.id, attempt=0, lines=[str(n) * 10 for n in range(6)], new_offset=10
        )
        events = [Note(message=str(n) * 10) for n in range(6)]
        history.apply(session=session, run_id=run.id, attempt=0, events=events, new_offset=10)
        samples.add(session=session, run_id=run.id, events=drawn)
    with database.read() as session:
        asked = {"session": session, "run_id": run.id}
        first = history.log_head(**asked)
        assert [line.text[0] for line in first] == ["0", "1", "2"]
        assert [line.text[0] for line in history.log_head(**asked, after_id=first[-1].id)] == ["3", "4", "5"]
        assert [line.text[0] for line in history.log_tail(**asked)] == ["3", "4", "5"]
        assert [event.message[0] for event in history.following(**asked)] == ["0", "1", "2"]
        groups, total = samples.groups(**asked, wanted=Wanted())
        assert ([group[0].step for group in groups], total) == ([5, 4], 5)
        assert [group[0].step for group in samples.groups(**asked, wanted=Wanted(), offset=2)[0]] == [3, 2]
        monkeypatch.setattr(long_rows, "MOST_CHARACTERS", 1)
        assert len(samples.groups(**asked, wanted=Wanted())[0]) == 1
