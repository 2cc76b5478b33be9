"""What a result says of the settings of its run, also to a Lathe with other defaults."""

import json
from pathlib import Path

from training.config.fields import parse
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.run_folder.record import Lineage, read_record, write_record


def read(folder: Path) -> RunConfig:
    return parse(read_record(folder)["settings"])


def test_a_setting_whose_default_has_changed_keeps_what_it_was(tmp_path: Path) -> None:
    config = RunConfig(model="owner/name", data="rows.jsonl", lora_r=5)
    for given in (config, config.model_copy(update={"group_by": None})):
        write_record(tmp_path, given, {}, Lineage(), Machine("cpu"))
        assert read(tmp_path) == given
    file = tmp_path / "lathe.json"
    older = json.loads(file.read_text())
    assert older["settings"].keys() == {"model", "data", "lora_r", "group_by"}
    del older["settings"]["group_by"]  # as it was written before there was this setting
    file.write_text(json.dumps(older))
    assert read(tmp_path).group_by is None
