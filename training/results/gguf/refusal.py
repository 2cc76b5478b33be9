"""The error for a model that llama.cpp would compute, or read text for, differently."""

from training.errors import UserError

_FIX = "llama.cpp's own convert_hf_to_gguf.py supports more; run it on the exported folder."


def refusal(value: str, message: str, fix: str = _FIX) -> UserError:
    """An error about the architecture, setting or tensor `value`."""
    return UserError("gguf", value, message, fix)
