"""A file of weights that is cut or damaged is named before a library fails on it."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from training.errors import UserError
from training.model_info.folder import check_weights
from training.serving.__main__ import _folders

WHOLE = save({"a": np.zeros(8, np.float32)})


@pytest.mark.parametrize("damaged", [b"", WHOLE[:4], WHOLE[:-1], b"\0" * 40], ids=["empty", "length", "cut", "zeros"])
def test_a_damaged_file_of_weights_is_named_when_it_is_served(tmp_path: Path, damaged: bytes) -> None:
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(WHOLE)
    assert _folders("adapter", [("one", str(tmp_path))]) == {"one": tmp_path}
    file.write_bytes(damaged)
    message = f"one={tmp_path}.*cannot be loaded: {file.name} is truncated or damaged"
    with pytest.raises(UserError, match=message):
        _folders("adapter", [("one", str(tmp_path))])


def test_other_files_of_a_result_are_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    check_weights(tmp_path, "adapter", "one")
