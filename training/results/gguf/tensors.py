"""The tensors of a model folder under llama.cpp's names, in the form that it expects."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors import safe_open

from training.results.gguf import rope
from training.results.gguf.architectures import Architecture
from training.results.gguf.refusal import refusal

_NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
_TEXT_MODEL = re.compile(r"^(model\.)?language_model\.(model\.)?")
_OTHER_MODELS = ("vision_tower.", "multi_modal_projector.")


def tensors(folder: Path, config: Any, found: Architecture) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors in the model's dtype, one in memory at a time; vectors in fp32, which llama.cpp requires.

    Raises:
        UserError: the model has a tensor that its architecture does not have.
    """
    names = Names(config, found)
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                if names.is_weight(name):
                    tensor = found.rows(name, found.rearrange(name, stored.get_tensor(name), config), config)
                    yield names.of(name), tensor.float() if tensor.ndim == 1 else tensor
    if found.arch is not gguf.MODEL_ARCH.GPT2:
        yield from rope.factor_tensors(config)


class Names:
    """llama.cpp's names of an architecture's tensors."""

    def __init__(self, config: Any, found: Architecture) -> None:
        self._map = gguf.get_tensor_name_map(found.arch, config.num_hidden_layers)
        self._tied = bool(config.tie_word_embeddings)

    def is_weight(self, name: str) -> bool:
        """False for buffers, a tied output layer, and the parts that read images."""
        plain = name.removeprefix("model.")
        tied = self._tied and name.endswith("lm_head.weight")
        return not (tied or name.endswith(_NO_WEIGHTS) or plain.startswith(_OTHER_MODELS))

    def of(self, name: str) -> str:
        """The name in llama.cpp.

        Raises:
            UserError: there is none.
        """
        plain = name if name.endswith("lm_head.weight") else _TEXT_MODEL.sub("model.", name)
        plain = plain.removeprefix("language_model.") if plain.endswith("lm_head.weight") else plain
        found = self._map.get_name(plain, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise refusal(name, "is a tensor that this architecture does not have.")
        return str(found)
