"""llama.cpp by its Python package, which is an optional extra."""

from importlib import import_module
from types import ModuleType

from training.errors import UserError


def llama_cpp(needed_by: str, otherwise: str = "") -> ModuleType:
    """The package llama_cpp.

    Raises:
        UserError: it is not installed; the error names `needed_by`, and the fix ends with `otherwise`.
    """
    try:
        import_module("llama_cpp.llama_chat_format")
        return import_module("llama_cpp")
    except ImportError:
        fix = f"Install it (pip install 'lathe-workbench[llama]' compiles it with g++ and cmake){otherwise}."
        raise UserError("type", needed_by, "needs llama.cpp, which is not installed.", fix) from None
