"""Explains an error in the code of an installed package, and a package that is missing: its name, and how it is installed."""

import re

from worker.diagnosis.cause import Detail, Known
from worker.diagnosis.own_code_analysis import library_of
from worker.diagnosis.parsing.tracebacks import Frame, is_passing
from worker.diagnosis.timeline import Log

_WORK_ON_DATA = frozenset(
    {
        "PIL", "aiohttp", "click", "datasets", "fire", "fsspec", "httpx", "huggingface_hub", "hydra", "jinja2", "json5", "librosa",
        "numpy", "omegaconf", "pandas", "pyarrow", "pydantic", "requests", "safetensors", "scipy", "sentencepiece", "sklearn",
        "soundfile", "tiktoken", "tokenizers", "torch", "torchvision", "typer", "urllib3", "wandb", "yaml",
    }
)  # fmt: skip
"""Packages whose errors usually are about what they were given."""
_OF_DATA = re.compile(r"collat|template|tokeniz|processing|prompt|dataset|chat_")
_LOOKED_UP = re.compile(r"(?:Key|Index)Error\b")
_TORCH = re.compile(r"/torch/")
_MODULE = re.compile(r"No module named '?(?P<module>\w+)")
_INSTALLED_AS = {
    "PIL": "pillow", "cv2": "opencv-python", "yaml": "pyyaml", "sklearn": "scikit-learn", "skimage": "scikit-image",
    "swift": "ms-swift", "dotenv": "python-dotenv", "git": "gitpython", "bs4": "beautifulsoup4", "fitz": "pymupdf",
    "flash_attn": "flash-attn --no-build-isolation", "causal_conv1d": "causal-conv1d --no-build-isolation",
    "mamba_ssm": "mamba-ssm --no-build-isolation", "transformer_engine": "transformer-engine[pytorch] --no-build-isolation",
    "transformer_engine_torch": "transformer-engine[pytorch] --no-build-isolation", "megatron": "megatron-core",
    "liger_kernel": "liger-kernel", "qwen_vl_utils": "qwen-vl-utils", "fla": "flash-linear-attention",
    "rouge_chinese": "rouge-chinese", "unsloth_zoo": "unsloth_zoo", "llamafactory": "-e . in the folder of LLaMA-Factory",
    "auto_gptq": "auto-gptq", "awq": "autoawq", "nemo": "nemo_toolkit", "lm_eval": "lm-eval",
    "pkg_resources": "'setuptools<81'", "distutils": "setuptools", "attr": "attrs", "Levenshtein": "levenshtein",
}  # fmt: skip
"""Modules whose package has another name, or is installed in a way of its own."""


def _frame(log: Log, index: int) -> Frame | None:
    """The last frame that is neither torch's nor Python's, nor only passes on a call."""
    trace = log.traceback_at(index)
    frames = [
        frame
        for frame in (trace.frames if trace else ())
        if not (is_passing(frame) or frame.of_python or _TORCH.search(frame.file.replace("\\", "/")))
    ]
    return frames[-1] if frames else None


def in_library(log: Log, index: int) -> bool:
    """True if the code of an installed package failed, and not at the user's data."""
    frame = _frame(log, index)
    if frame is None or frame.package is None or frame.package in _WORK_ON_DATA:
        return False
    return not (_LOOKED_UP.match(log.lines[index].text) and _OF_DATA.search(f"{frame.file} {frame.function}"))


def in_checkout(log: Log, index: int) -> bool:
    """True if the code of a training library that is installed from its sources failed, and not at the user's data."""
    frame = _frame(log, index)
    if frame is None or frame.installed or library_of(frame) is None:
        return False
    return not (_LOOKED_UP.match(log.lines[index].text) and _OF_DATA.search(f"{frame.file} {frame.function}"))


def analyze_library(log: Log, index: int, known: Known) -> Detail:
    """Names the package and the place in its code."""
    frame, message = _frame(log, index), log.lines[index].text.strip()
    if frame is None:
        return Detail(explanation=message)
    if frame.package is None:
        return _of_checkout(frame, message)
    place = f"{frame.package}/{frame.file.replace(chr(92), '/').rpartition(f'{frame.package}/')[2]}, line {frame.line}"
    code = f": `{frame.code}`" if frame.code else ""
    return Detail(
        explanation=f"{message} ({place} in {frame.function}{code})",
        fix=(
            f"Update {frame.package} (pip install -U {frame.package}) and what it works with (pip check lists what does not fit); "
            "if it worked before an update, install the version of then.",
            f"Search the issues of {frame.package} for this message and {frame.function}: others have met it, often with a version "
            "that has the mend. Until then, leave out the setting or feature whose code the frames show.",
        ),
    )


def _of_checkout(frame: Frame, message: str) -> Detail:
    """The place in a library that is installed from its sources."""
    name = library_of(frame)
    place = f"{frame.file}, line {frame.line}"
    code = f": `{frame.code}`" if frame.code else ""
    return Detail(
        explanation=f"{message} ({place} in {frame.function}{code})",
        fix=(
            f"The file belongs to {name}: if you did not change it, its version has a fault here, or does not fit your data or the "
            "other packages: update it (git pull, then pip install -e .), and install the versions that its requirements name.",
            f"Search the issues of {name} for this message and {frame.function}. If you changed the file, print the values of that "
            "line just before it.",
        ),
    )


def analyze_package(log: Log, index: int, known: Known) -> Detail:
    """How a module is installed whose package has another name."""
    found = _MODULE.search(log.lines[index].text)
    package = _INSTALLED_AS.get(found["module"]) if found else None
    return Detail(fix=(f"Install it: pip install {package}.",)) if package else Detail()
