"""A named pipe in the place of a model's file is refused at once; opening it would wait for its writer."""

import os

import pytest

from training.chat.template import from_file
from training.config.sharding import deepspeed_from_file
from training.model_info.chat_template import chat_template_of
from training.model_info.config_json import ModelError, read_config
from training.model_info.folder import count_parameters


@pytest.fixture
def pipes(tmp_path):
    """A model's folder whose files are named pipes."""
    for name in ("config.json", "model.safetensors", "tokenizer_config.json", "chat_template.jinja"):
        os.mkfifo(tmp_path / name)
    return tmp_path


def test_a_named_pipe_is_no_file_of_a_model(pipes):
    with pytest.raises(ModelError, match="not a regular file"):
        read_config(pipes)
    with pytest.raises(ModelError, match="not a regular file"):
        read_config(pipes / "config.json")
    assert chat_template_of(pipes) is None
    for read in (count_parameters, from_file, deepspeed_from_file):
        with pytest.raises(OSError, match="not a regular file"):
            read(pipes / "model.safetensors")
