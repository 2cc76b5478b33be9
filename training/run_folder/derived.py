"""The forms that are made of a run's result or of a checkpoint, in the run's folder, where each can be made again; and the types of
GGUF files: how many bits a weight has."""

import shutil
from enum import StrEnum
from pathlib import Path

from training.parts import is_here
from training.run_folder.paths import (
    ARCHIVE_FILE,
    GGUF_FILE,
    MERGED_FILE,
    MERGED_FOLDER,
    PARITY_FILE,
    PARITY_FOLDER,
    STAGES_FILE,
    UNFINISHED_FOLDER,
    checkpoint_step,
)

ADAPTER_GGUF_FILE = "adapter.gguf"


class GgufType(StrEnum):
    """llama.cpp's names of the formats of matrices; vectors are always fp32."""

    TRAINED = "trained"
    F16 = "F16"
    Q8_0 = "Q8_0"
    Q6_K = "Q6_K"
    Q5_K_M = "Q5_K_M"
    Q4_K_M = "Q4_K_M"
    Q3_K_M = "Q3_K_M"

    @property
    def by_llama_cpp(self) -> bool:
        """True if llama.cpp's quantizer makes it (the extra `llama`)."""
        return self not in (GgufType.TRAINED, GgufType.F16, GgufType.Q8_0)

    @property
    def file(self) -> str:
        """The file's name in the run's folder."""
        return GGUF_FILE if self is GgufType.TRAINED else f"model-{self.value}.gguf"

    @property
    def form(self) -> str:
        """What a run's result as such a file is called: gguf, gguf-TYPE."""
        return "gguf" if self is GgufType.TRAINED else f"gguf-{self.value}"

    @property
    def meaning(self) -> str:
        """A sentence on what it costs and saves."""
        return _MEANINGS[self]


_MEANINGS = {
    GgufType.TRAINED: "The weights as trained, in their own dtype.",
    GgufType.F16: "16 bits a weight; for models trained in fp32.",
    GgufType.Q8_0: "8.5 bits a weight; answers hardly differ.",
    GgufType.Q6_K: "6.6 bits a weight; answers differ little.",
    GgufType.Q5_K_M: "5.7 bits a weight; a little smaller than Q6_K.",
    GgufType.Q4_K_M: "4.8 bits a weight; the usual choice for models of 7 billion weights or more.",
    GgufType.Q3_K_M: "3.9 bits a weight; only where memory is short, answers differ visibly.",
}

GGUF_TYPES = tuple(GgufType) if is_here("training.results.gguf") else ()
"""Those that this installation can make."""
GGUF_FILES = (*(kind.file for kind in GgufType), ADAPTER_GGUF_FILE)


def is_derived(path: Path) -> bool:
    """True for a merged model, a GGUF file, and the packed weights of a checkpoint."""
    of_checkpoint = path.suffix == ".zip" and checkpoint_step(path.with_suffix("")) is not None
    return path.name in (MERGED_FOLDER, MERGED_FILE, *GGUF_FILES) or of_checkpoint


def is_outdated(path: Path) -> bool:
    """True for what does not belong to a new result: all forms of the one before, packed ones too, and how they compared."""
    return is_derived(path) or path.name in (
        ARCHIVE_FILE,
        PARITY_FILE,
        PARITY_FOLDER,
        STAGES_FILE,
        UNFINISHED_FOLDER,
    )


def remove_outdated(run_dir: Path) -> None:
    """Deletes the forms of a run's earlier result."""
    for path in filter(is_outdated, list(run_dir.iterdir())):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
