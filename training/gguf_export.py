"""A model folder as one GGUF file, for llama.cpp and what is built on it: `python -m training.gguf_export MODEL_FOLDER FILE.gguf`.

Names and keys are those of the `gguf` library; what is here is the arithmetic that llama.cpp expects of four architectures.
Tensors keep their format (vectors are fp32, as llama.cpp wants them), and are copied one at a time.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors import safe_open
from transformers import AutoConfig, PretrainedConfig

from training.failure import UserError
from training.gguf_vocabulary import add_vocabulary

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
# GPT-2 keeps these as (input, output).
_TURNED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
_NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def convert(folder: Path, target: Path) -> None:
    """Writes the model in `folder` as `target`, whole or not at all.

    Raises:
        UserError: its architecture, positions or tokenizer are none that is known here.
        OSError: the disk is full.
    """
    config = AutoConfig.from_pretrained(folder)
    arch = _architecture(config)
    part = target.with_name(f"{target.name}.part")
    writer = gguf.GGUFWriter(part, gguf.MODEL_ARCH_NAMES[arch])
    try:
        _add_facts(writer, config, arch, folder.parent.name)
        add_vocabulary(writer, folder, config.vocab_size)
        _write(writer, folder, config, arch)
        part.replace(target)
    finally:
        writer.close()
        part.unlink(missing_ok=True)


def _architecture(config: PretrainedConfig) -> gguf.MODEL_ARCH:
    name = (config.architectures or [""])[0]
    if name not in ARCHITECTURES:
        raise _refusal(name, "is no architecture that is converted here.")
    if getattr(config, "sliding_window", None):
        raise _refusal(name, "attends within a sliding window, which is not converted.")
    if (kind := _rope(config).get("rope_type", "default")) != "default":
        raise _refusal(name, f"scales its positions ({kind}), which is not converted.")
    return ARCHITECTURES[name]


def _refusal(name: str, message: str) -> UserError:
    return UserError(
        "gguf", name, message, f"Known are {', '.join(ARCHITECTURES)}; llama.cpp's own converter knows more."
    )


def _rope(config: PretrainedConfig) -> dict[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


def _add_facts(writer: gguf.GGUFWriter, config: PretrainedConfig, arch: gguf.MODEL_ARCH, name: str) -> None:
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
    """Says of every tensor what it is, then writes them in the same order."""
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
            for name in stored.keys():  # noqa: SIM118 - it is no mapping
                if name.endswith(_NO_WEIGHTS) or (name == "lm_head.weight" and config.tie_word_embeddings):
                    continue
                known = names.get_name(name, try_suffixes=(".weight", ".bias"))
                if known is None:
                    raise _refusal(name, "is a tensor that this architecture has no name for.")
                yield known, _as_expected(name, stored.get_tensor(name), config, arch)


def _as_expected(name: str, tensor: torch.Tensor, config: PretrainedConfig, arch: gguf.MODEL_ARCH) -> torch.Tensor:
    if arch is gguf.MODEL_ARCH.GPT2 and name.endswith(_TURNED):
        tensor = tensor.T
    if arch is gguf.MODEL_ARCH.LLAMA and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        tensor = _interleaved(tensor, heads)
    return tensor.float() if tensor.ndim == 1 else tensor


def _interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows so ordered that rotary positions turn neighbours, as in Llama's own code, and not the two halves of a head."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def main(folder: Path, target: Path) -> int:
    """Converts; what went wrong is said on standard error."""
    try:
        convert(folder, target)
    except (UserError, OSError) as error:
        print(error, getattr(error, "fix", ""), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
