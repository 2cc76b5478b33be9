"""What a followed run ends with: the exit code and the status that lists and pages show."""

import pytest
from commands import lathe
from played_run import SUMMARY, PlayedRun

from app.cli.runs import run as cli_run
from app.format import run_text as words
from worker.store.tables import Status

SAME = {"prompt_ids_equal": True, "answers_equal": True, "equal": True}
PARITY = {"rows": 2, "equal": False, "forms": {"adapter": SAME, "merged": SAME | {"equal": False}}}


@pytest.mark.parametrize(
    ("status", "summary", "code", "word"),
    [
        (Status.FINISHED, SUMMARY, 0, "finished"),
        (Status.FINISHED, SUMMARY | {"parity": PARITY}, 5, "finished, result differs"),
        (Status.FINISHED, SUMMARY | {"parity": PARITY | {"forms": {"adapter": {"error": {}}}}}, 0, "finished"),
        (Status.FINISHED, SUMMARY | {"undone": {"verifying": "Too large."}}, 0, "finished, not verified"),
        (Status.DIVERGED, SUMMARY, 4, "diverged"),
        (Status.DIVERGED, None, 4, "diverged"),
        (Status.STOPPED, None, 3, "stopped"),
        (Status.FAILED, None, 1, "failed"),
    ],
)
def test_the_end_of_a_run_is_its_exit_code_and_its_status(home, capsys, status, summary, code, word):
    played = PlayedRun("a run").claim()
    played.end(status, summary=summary, error={"message": "It failed."} if status is Status.FAILED else None)
    assert cli_run._follow(played.id, as_json=False) == code
    assert capsys.readouterr().out.splitlines()[-12:]
    row = next(line for line in lathe("runs").stdout.splitlines() if line.startswith(played.id))
    assert f" {word}  " in row
    run = played.row
    assert words.status(run)[1] == word
    assert run.has_result is (summary is not None)
