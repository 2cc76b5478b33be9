"""Readers of files of strangers raise only what they document, whatever the file holds."""

import gzip
import io
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import patience
import pytest
from paths import ROOT, TESTS
from played_run import PlayedRun
from programs.fuzz_readers import READERS, mutations

from worker.archives import run_archive
from worker.store import database, runs

FUZZ_SECONDS = 600
QUICK = {"archive": 40, "configuration": 150, "foreign": 100, "deepspeed": 300, "log": 20, "rows": 100, "bundle": 300}

YAML = b"model: m\ndata: [a.jsonl, {path: b.jsonl, weight: 2}]\nlora_r: 8\nlearning_rate: 2e-4\nmethod_options: {a: &x [1], b: *x}"
OTHERS = (
    b"base_model: m\nadapter: qlora\ndatasets:\n- path: a\n  type: alpaca\nlora_r: 8\nmicro_batch_size: 2\nval_set_size: 0.1\n",
    b"accelerate launch --num_processes 2 train.py --model_name_or_path $M --learning_rate=1e-4 \\\n --bf16 --deepspeed ds.json\n",
    b'{"model_name_or_path": "m", "stage": "sft", "dataset": "a,b", "finetuning_type": "lora", "cutoff_len": 2048}',
)
DEEPSPEED = (
    b'{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": true}}, "bf16": {"enabled": "auto"}}',
    b'{ // a comment\n "train_batch_size": 8, "fp16": {"enabled": [true|false], "loss_scale": 0,}, }',
)
ROWS = (
    b'jsonl\n{"prompt": "a", "completion": "b"}\n{"messages": [{"role": "user", "content": "x"}]}\n',
    b'json\n[{"text": "a"}, {"text": "b", "n": 1.5}]',
    b'csv\na,b\n"x, y",2\n"q""q",3\n',
    b"txt\none\n\ntwo\n",
    b"jsonl.gz\n" + gzip.compress(b'{"text": "a"}\n' * 50, mtime=0),
)


def seeds(reader: str) -> list[bytes]:
    if reader == "log":
        return [path.read_bytes()[-5000:] for path in sorted((TESTS / "logs").glob("*.log"))]
    if reader == "archive":
        return [archive()]
    bundle = {"a/train.jsonl": ROWS[0], "": b"", "a/state.json": b'{"_data_files": [{"filename": "x.arrow"}]}'}
    others = {"configuration": [YAML], "foreign": [*OTHERS, *DEEPSPEED], "deepspeed": DEEPSPEED, "rows": ROWS}
    return list(({"bundle": [zipped(bundle)]} | others)[reader])


def zipped(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(ZipInfo(name), content, ZIP_DEFLATED)
    return target.getvalue()


def archive() -> bytes:
    """The archive of a run, which is then deleted."""
    run = PlayedRun("fuzzed").claim().prints("a line").end()
    packed = b"".join(run_archive.packed(run.id))
    with database.write() as session:
        runs.delete(session=session, run_id=run.id)
    return packed


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_raises_only_what_it_documents(home: Path, reader: str) -> None:
    for content in mutations(seeds(reader), QUICK[reader]):
        try:
            READERS[reader](content)
        except Exception as error:
            raise AssertionError(repr(content)) from error


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("atheris") is None, reason="needs the package atheris")
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_raises_only_what_it_documents_in_ten_minutes_of_fuzzing(
    home: Path, tmp_path: Path, reader: str
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, content in enumerate(seeds(reader)):
        (corpus / f"seed-{number}").write_bytes(content)
    program = str(TESTS / "programs" / "fuzz_readers.py")
    result = patience.run(
        [sys.executable, program, reader, str(FUZZ_SECONDS), str(corpus)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-6000:]
