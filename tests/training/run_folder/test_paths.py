"""The names in a run's folder."""

from pathlib import Path

from paths import ROOT
from subtest_table import table

from training.run_folder import paths as run_paths


@table("name", [name for name in vars(run_paths) if name.endswith(("_FILE", "_FOLDER"))])
def test_every_name_is_in_the_table_of_the_architecture(name: str) -> None:
    assert f"`{getattr(run_paths, name)}" in (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def test_the_saved_result_is_the_adapter_or_the_model(tmp_path: Path) -> None:
    assert run_paths.saved_result(tmp_path) is None
    model = run_paths.result_dir(tmp_path, adapts=False)
    model.mkdir()
    assert run_paths.saved_result(tmp_path) == model == tmp_path / "model"


@table(("name", "step"), [("checkpoint-12", 12), ("checkpoint-", None), ("12", None), ("runs", None)])
def test_a_checkpoints_step_is_in_its_folders_name(tmp_path: Path, name: str, step: int | None) -> None:
    assert run_paths.checkpoint_step(tmp_path / name) == step
    assert run_paths.checkpoint_step(run_paths.checkpoint_dir(tmp_path, 7)) == 7
