"""The plan of a sweep before its start."""

from pathlib import Path

from worker.datasets import datasets, token_stores
from worker.settings import ROOT
from worker.sweeps.plan import make_plan
from worker.sweeps.spec import parse_sweep

STARTER = ROOT / "static" / "starter"


def test_the_rows_of_each_run_have_the_tokens_of_its_own_chat_template(home: Path) -> None:
    item = datasets.add_file(path=STARTER / "train.jsonl", name="train.jsonl")
    path = datasets.path_of(item)
    token_stores.wait(lambda: token_stores.measure(path, item.sha256, str(STARTER), rows=item.rows, retry=True))
    config = {"model": str(STARTER), "data": item.id, "max_length": 512, "memory_limit": 1000}
    spec = parse_sweep({"config": config, "space": {"chat_template": [None, "chatml"]}})
    counted, not_counted = (run.peak_bytes for run in make_plan(spec).runs)
    assert counted and not_counted and counted < not_counted  # rows without counts are taken as long as max_length
