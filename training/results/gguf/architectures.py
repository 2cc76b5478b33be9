"""How each architecture of transformers differs from llama.cpp's: tensors that are rearranged, and what only one of them can do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gguf
import torch
from transformers import PretrainedConfig

from training.errors import UserError

_FIX = "llama.cpp's own convert_hf_to_gguf.py supports more; run it on the exported folder."
Rearrange = Callable[[str, torch.Tensor, Any], torch.Tensor]
# GPT-2 stores these as (input, output).
_TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
_ACTIVATIONS = ("hidden_activation", "hidden_act", "activation_function")


def refusal(value: str, message: str, fix: str = _FIX) -> UserError:
    """An error about the architecture, setting or tensor `value`."""
    return UserError("gguf", value, message, fix)


@dataclass(frozen=True)
class Architecture:
    """llama.cpp's architecture, its activation function, and the tensors that it expects in another form.

    `rearrange` gives the tensor of a name that form; `rows` only reorders its rows, and so applies to the second factor of a
    LoRA adapter too. `windows` is True if llama.cpp computes sliding windows.
    """

    arch: gguf.MODEL_ARCH
    activation: str = "silu"
    rearrange: Rearrange = lambda _name, tensor, _config: tensor
    rows: Rearrange = lambda _name, tensor, _config: tensor
    windows: bool = False


def _of_llama(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    if ".q_proj." not in name and ".k_proj." not in name:
        return tensor
    return interleaved(tensor, config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads)


def interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders rows so that rotary positions rotate neighboring pairs, as in Llama's own code, not the halves of a head."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def _of_gpt2(name: str, tensor: torch.Tensor, _config: Any) -> torch.Tensor:
    return tensor.T if name.endswith(_TRANSPOSED) else tensor


def _of_gemma(name: str, tensor: torch.Tensor, _config: Any) -> torch.Tensor:
    """Gemma's norms multiply by 1 plus the weight; llama.cpp's multiply by the weight."""
    return tensor.float() + 1 if name.endswith("norm.weight") else tensor


_LLAMA = Architecture(gguf.MODEL_ARCH.LLAMA, rows=_of_llama)
_GEMMA3 = Architecture(gguf.MODEL_ARCH.GEMMA3, "gelu_pytorch_tanh", _of_gemma, windows=True)

ARCHITECTURES = {
    "Gemma2ForCausalLM": Architecture(gguf.MODEL_ARCH.GEMMA2, "gelu_pytorch_tanh", _of_gemma, windows=True),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "GemmaForCausalLM": Architecture(gguf.MODEL_ARCH.GEMMA, "gelu_pytorch_tanh", _of_gemma),
    "GPT2LMHeadModel": Architecture(gguf.MODEL_ARCH.GPT2, "gelu_new", _of_gpt2),
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Phi3ForCausalLM": Architecture(gguf.MODEL_ARCH.PHI3),
    "PhiForCausalLM": Architecture(gguf.MODEL_ARCH.PHI2, "gelu_new"),
    "Qwen2ForCausalLM": Architecture(gguf.MODEL_ARCH.QWEN2),
    "Qwen3ForCausalLM": Architecture(gguf.MODEL_ARCH.QWEN3),
}


def architecture_of(config: PretrainedConfig) -> Architecture:
    """The entry of a model's architecture.

    Raises:
        UserError: there is none, or llama.cpp would compute this model differently.
    """
    name = (config.architectures or [""])[0]
    if name not in ARCHITECTURES:
        raise refusal(name, f"is not a supported architecture. Supported are {', '.join(ARCHITECTURES)}.")
    architecture, text = ARCHITECTURES[name], config.get_text_config()
    used = next((value for key in _ACTIVATIONS if (value := getattr(text, key, None))), architecture.activation)
    if used != architecture.activation:
        raise refusal(
            name, f"uses the activation function {used}; llama.cpp computes it with {architecture.activation}."
        )
    _check_attention(name, architecture, text)
    return architecture


def _check_attention(name: str, architecture: Architecture, config: Any) -> None:
    scale = getattr(config, "query_pre_attn_scalar", None)
    if scale is not None and scale != (known := _attention_scale(architecture, config)):
        raise refusal(name, f"scales its attention by query_pre_attn_scalar {scale}; llama.cpp assumes {known}.")
    if getattr(config, "qk_layernorm", False):
        raise refusal(name, "normalizes queries and keys (qk_layernorm), which llama.cpp does not compute.")
    if (
        getattr(config, "scale_attn_by_inverse_layer_idx", False)
        or getattr(config, "scale_attn_weights", True) is False
    ):
        raise refusal(name, "scales its attention in a way that llama.cpp does not compute.")
    if architecture.arch is gguf.MODEL_ARCH.GEMMA2 and not (
        config.attn_logit_softcapping and config.final_logit_softcapping
    ):
        raise refusal(name, "has no soft caps, and llama.cpp always computes those of Gemma 2.")
    if getattr(config, "use_bidirectional_attention", False):
        raise refusal(name, "attends in both directions, which llama.cpp does not compute.")


def _attention_scale(architecture: Architecture, config: Any) -> int:
    """The square of what llama.cpp divides attention scores by: it recognizes the largest Gemma models by their layers."""
    largest = {gguf.MODEL_ARCH.GEMMA2: 46, gguf.MODEL_ARCH.GEMMA3: 62}
    if config.num_hidden_layers == largest.get(architecture.arch):
        return int(config.hidden_size // config.num_attention_heads)
    return int(config.head_dim)
