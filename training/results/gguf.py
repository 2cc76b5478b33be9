"""Converts a model folder to a GGUF file for llama.cpp: `python -m training.results.gguf MODEL_FOLDER FILE.gguf`.

Names and keys come from the `gguf` library; this module rearranges the tensors of four architectures as llama.cpp expects them.
Tensors keep their dtype (vectors become fp32, which llama.cpp requires) and are copied one at a time.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors import safe_open
from transformers import AutoConfig, PretrainedConfig

from training.errors import UserError
from training.results.gguf_vocabulary import add_vocabulary

ARCHITECTURES = {
    "GPT2LMHeadModel": gguf.MODEL_ARCH.GPT2,
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MistralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
}
_TYPES = {
    torch.float32: (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    torch.float16: (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    torch.bfloat16: (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}
# GPT-2 stores these as (input, output).
_TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
_NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def convert(folder: Path, target: Path) -> None:
    """Writes the model in `folder` to `target` atomically.

    Raises:
        UserError: its architecture, positions or tokenizer are not supported.
        OSError: the disk is full.
    """
    config = AutoConfig.from_pretrained(folder)
    arch = _architecture(config)
    part = target.with_name(f"{target.name}.part")
    writer = gguf.GGUFWriter(part, gguf.MODEL_ARCH_NAMES[arch])
    try:
        _add_metadata(writer, config, arch, folder.parent.name)
        add_vocabulary(writer, folder, config.vocab_size)
        _write(writer, folder, config, arch)
        part.replace(target)
    finally:
        writer.close()
        part.unlink(missing_ok=True)


def _architecture(config: PretrainedConfig) -> gguf.MODEL_ARCH:
    name = (config.architectures or [""])[0]
    if name not in ARCHITECTURES:
        raise _refusal(name, "is not a supported architecture.")
    if getattr(config, "sliding_window", None):
        raise _refusal(name, "uses a sliding window, which is not supported.")
    if (kind := _rope(config).get("rope_type", "default")) != "default":
        raise _refusal(name, f"scales its positions ({kind}), which is not supported.")
    return ARCHITECTURES[name]


def _refusal(name: str, message: str) -> UserError:
    return UserError(
        "gguf", name, message, f"Supported are {', '.join(ARCHITECTURES)}; llama.cpp's own converter supports more."
    )


def _rope(config: PretrainedConfig) -> dict[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


def _add_metadata(writer: gguf.GGUFWriter, config: PretrainedConfig, arch: gguf.MODEL_ARCH, name: str) -> None:
    heads, hidden = config.num_attention_heads, config.hidden_size
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(hidden)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_file_type(_TYPES[config.dtype or torch.float32][1])
    if arch is gguf.MODEL_ARCH.GPT2:
        writer.add_feed_forward_length(config.n_inner or 4 * hidden)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    head = getattr(config, "head_dim", None) or hidden // heads
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(_rope(config)["rope_theta"])
    writer.add_vocab_size(config.vocab_size)


def _write(writer: gguf.GGUFWriter, folder: Path, config: PretrainedConfig, arch: gguf.MODEL_ARCH) -> None:
    """Writes the description of every tensor, then the tensors in the same order."""
    for name, tensor in _tensors(folder, config, arch):
        kind = _TYPES[tensor.dtype][0]
        writer.add_tensor_info(name, tensor.shape, torch.empty(0).numpy().dtype, tensor.nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, tensor in _tensors(folder, config, arch):
        writer.write_tensor_data(tensor.contiguous().view(torch.uint8).numpy())


def _tensors(folder: Path, config: PretrainedConfig, arch: gguf.MODEL_ARCH) -> Iterator[tuple[str, torch.Tensor]]:
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                if name.endswith(_NO_WEIGHTS) or (name == "lm_head.weight" and config.tie_word_embeddings):
                    continue
                gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
                if gguf_name is None:
                    raise _refusal(name, "is a tensor that this architecture does not have.")
                yield gguf_name, _rearranged(name, stored.get_tensor(name), config, arch)


def _rearranged(name: str, tensor: torch.Tensor, config: PretrainedConfig, arch: gguf.MODEL_ARCH) -> torch.Tensor:
    if arch is gguf.MODEL_ARCH.GPT2 and name.endswith(_TRANSPOSED):
        tensor = tensor.T
    if arch is gguf.MODEL_ARCH.LLAMA and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        tensor = _interleaved(tensor, heads)
    return tensor.float() if tensor.ndim == 1 else tensor


def _interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders rows so that rotary positions rotate neighboring pairs, as in Llama's own code, not the halves of a head."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def main(folder: Path, target: Path) -> int:
    """Converts a model; prints errors to standard error. Returns the exit status."""
    try:
        convert(folder, target)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
