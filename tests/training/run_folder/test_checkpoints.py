"""A checkpoint is valid only if all its bytes are unchanged."""

from pathlib import Path

from subtest_table import table

from training.run_folder import checkpoints
from training.run_folder.paths import checkpoint_dir, checkpoints_dir


def make(run_dir: Path, step: int, *, sealed: bool = True) -> Path:
    checkpoint = checkpoint_dir(run_dir, step)
    (checkpoint / "global").mkdir(parents=True)
    (checkpoint / "weights.safetensors").write_bytes(bytes(range(256)) * step)
    (checkpoint / "global/rank_0.pt").write_bytes(b"optimizer" * step)
    if sealed:
        checkpoints.seal(checkpoint)
    return checkpoint


def test_the_newest_complete_checkpoint_is_found_by_step_not_by_name(tmp_path: Path) -> None:
    make(tmp_path, 9)
    newest = make(tmp_path, 10)
    assert checkpoints.newest_checkpoint(tmp_path) == (newest, [])


def test_a_checkpoint_without_a_manifest_is_skipped_and_reported(tmp_path: Path) -> None:
    older = make(tmp_path, 1)
    make(tmp_path, 2, sealed=False)
    assert checkpoints.newest_checkpoint(tmp_path) == (older, ["checkpoint-2: it is incomplete"])
    assert [path.name for path in checkpoints.unsealed(tmp_path)] == ["checkpoint-2"]


@table("name", ["weights.safetensors", "global/rank_0.pt", "manifest.json"])
@table("damage", ["cut", "flipped", "gone"])
def test_damage_to_any_file_is_detected(tmp_path: Path, name: str, damage: str) -> None:
    older, newer = make(tmp_path, 1), make(tmp_path, 2)
    file = newer / name
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 0x80]) + content[middle + 1 :])
    result, rejected = checkpoints.newest_checkpoint(tmp_path)
    assert result == older
    assert len(rejected) == 1 and rejected[0].startswith("checkpoint-2: ")


def test_pruning_keeps_the_newest_and_incomplete_checkpoints(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        make(tmp_path, step)
    writing = make(tmp_path, 4, sealed=False)
    checkpoints.prune(tmp_path, keep=2)
    names = sorted(path.name for path in checkpoints_dir(tmp_path).iterdir())
    assert names == ["checkpoint-2", "checkpoint-3", writing.name]


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert checkpoints.newest_checkpoint(tmp_path) == (None, [])
