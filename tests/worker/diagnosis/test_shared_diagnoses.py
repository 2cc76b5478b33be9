"""Shared diagnoses: files with a redacted log, limited in size and number."""

import json
import os
import threading
from contextlib import suppress

import pytest

from app.access import callers
from app.access.callers import Caller
from app.access.permissions import Forbidden
from app.web.rest.diagnoses import delete_diagnosis
from worker.diagnosis import shared_diagnoses
from worker.diagnosis.diagnosis import diagnose
from worker.diagnosis.shared_diagnoses import LOG_BYTES, DiagnosisNotFound, TooManyShared
from worker.settings import get_settings

ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."
SECRET = "hf_" + "a" * 30


def shared(log=ERROR, owner="ada"):
    return shared_diagnoses.share(diagnosis=diagnose(log).document(), log=log, owner=owner)


def test_a_shared_diagnosis_is_found_by_its_id_with_its_log_without_secrets(home):
    one = shared(f"token is {SECRET}\n\x1b[31m{ERROR}\x1b[0m")
    again = shared_diagnoses.get(one.id)
    assert again == one and again.diagnosis["cause"] == "cuda_out_of_memory"
    assert again.log == f"token is hf_[redacted]\n{ERROR}"
    [file] = (get_settings().data_dir / "diagnoses").glob("*.json")
    assert SECRET not in file.read_text() and file.stat().st_mode & 0o777 == 0o600


def test_of_a_long_log_the_start_and_the_end_are_stored(home):
    log = shared_diagnoses.shortened("first\n" + f"{'line of a log ' * 20}\n" * 10_000 + "last")
    assert log.startswith("first\n") and log.endswith("last") and "bytes left out" in log
    assert len(log.encode()) < LOG_BYTES + 100


def test_an_owner_may_share_a_limited_number_of_logs(home, monkeypatch):
    monkeypatch.setattr(shared_diagnoses, "MOST", 2)
    first, _ = shared(), shared()
    with pytest.raises(TooManyShared, match="Delete one of them"):
        shared()
    shared(owner="grace")
    shared_diagnoses.delete(first.id)
    shared()


def test_many_at_once_share_no_more_than_one_may(home, monkeypatch):
    monkeypatch.setattr(shared_diagnoses, "MOST", 3)
    ready = threading.Barrier(8)

    def share():
        ready.wait()
        with suppress(TooManyShared):
            shared()

    threads = [threading.Thread(target=share) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shared_diagnoses.listing()) == 3


def test_a_list_reads_each_log_once(home, monkeypatch):
    ids = {shared().id for _ in range(3)}
    assert {one.id for one in shared_diagnoses.listing()} == ids
    monkeypatch.setattr(shared_diagnoses, "_read", None)
    assert {one.id for one in shared_diagnoses.listing()} == ids


def test_shared_diagnoses_are_listed_newest_first_and_a_damaged_file_is_left_out(home):
    ids = [shared().id for _ in range(3)]
    for place, diagnosis_id in enumerate(ids):
        os.utime(get_settings().data_dir / "diagnoses" / f"{diagnosis_id}.json", (place, place))
    (get_settings().data_dir / "diagnoses" / "0.json").write_text("{")
    damaged = {"id": "1", "owner": "a", "created_at": 0, "diagnosis": {}, "log": ""}
    (get_settings().data_dir / "diagnoses" / "1.json").write_text(json.dumps(damaged))
    assert [one.id for one in shared_diagnoses.listing()] == ids[::-1]


@pytest.mark.parametrize("diagnosis_id", ["f" * 16, "../lathe", "", "A" * 16])
def test_an_unknown_id_is_refused(home, diagnosis_id):
    with pytest.raises(DiagnosisNotFound, match="does not exist"):
        shared_diagnoses.get(diagnosis_id)


def test_only_its_owner_and_an_admin_delete_a_shared_diagnosis(home):
    first, second = shared(), shared()
    try:
        callers.begin(Caller("grace"))
        with pytest.raises(Forbidden, match="belongs to ada"):
            delete_diagnosis(first.id)
        callers.begin(Caller("ada"))
        delete_diagnosis(first.id)
        callers.begin(Caller("root", admin=True))
        delete_diagnosis(second.id)
    finally:
        callers.begin(Caller())
    assert shared_diagnoses.listing() == []
