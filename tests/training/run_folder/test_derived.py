"""The forms of a result that can be made again."""

from training.run_folder.derived import is_derived, remove_outdated


def test_a_new_result_makes_all_forms_of_the_one_before_out_of_date(tmp_path):
    forms = ["merged", "merged.zip", "model.gguf", "model-Q8_0.gguf", "adapter.gguf", "checkpoint-4.zip"]
    others = ["adapter", "config.json", "checkpoints", "events.jsonl", "other.zip", "checkpoint-x.zip"]
    for name in [*forms, *others, "adapter.zip", "parity"]:
        (tmp_path / name).mkdir()
    (tmp_path / "parity.json").touch()
    assert {path.name for path in tmp_path.iterdir() if is_derived(path)} == {*forms}
    remove_outdated(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*others}
