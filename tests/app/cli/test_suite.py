"""`lathe suite`: queues a suite, waits for its end, and says by exit code and JUnit XML whether it passed."""

import json
from xml.etree.ElementTree import parse

import pytest
from commands import lathe
from prepared import prepared_installation  # noqa: F401
from sqlmodel import select
from suite_parts import CASES, finished

from app.cli import suite
from worker.store import database
from worker.store.tables import Evaluation, Status


@pytest.mark.parametrize(("verdicts", "exit_code"), [(("kept", "fixed", "kept"), 0), (("kept", "broken", "kept"), 1)])
def test_it_waits_for_the_end_and_writes_the_verdicts(prepared, monkeypatch, tmp_path, verdicts, exit_code):
    def ended(_seconds):
        with database.read() as session:
            items = list(session.exec(select(Evaluation).where(Evaluation.status == Status.QUEUED)))
        for item in items:
            finished(item, verdicts=verdicts)

    monkeypatch.setattr(suite.time, "sleep", ended)
    cases, file = tmp_path / "cases.jsonl", tmp_path / "suite.xml"
    cases.write_text("".join(json.dumps(case) + "\n" for case in CASES))
    options = ["--cases", cases, "--data", prepared.heldout, "--shots", 2, "--metric", "exact_match", "--junit", file]
    result = lathe("suite", prepared.finished, *options)
    assert result.exit_code == exit_code, result.output
    (tests,) = parse(file).getroot()
    assert (tests.get("tests"), tests.get("failures")) == ("10", str(exit_code))
    assert ("broken: case 2" in result.output) == bool(exit_code)


def test_a_file_that_is_no_json_is_refused(prepared, tmp_path):
    cases = tmp_path / "cases.jsonl"
    cases.write_text("Hello\n")
    result = lathe("suite", prepared.finished, "--cases", cases)
    assert result.exit_code and "cannot be read" in result.output
