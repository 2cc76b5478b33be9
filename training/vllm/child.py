"""`python -m training.vllm.child COMMAND ...`: becomes the command, which the kernel kills when the process that started it ends.

The command may belong to another virtual environment, so it does not see where this one has its packages. It gets none of Lathe's
variables but the mark of the run, and none of torchrun's: with TORCHELASTIC_USE_AGENT_STORE torch would wait for a store that no
agent has opened.
"""

import os
import re
import sys

from training.ranks.stopping import die_with_parent
from training.run_folder.paths import RUN_VARIABLE

_OURS = re.compile(
    r"PYTHON(PATH|SAFEPATH|HOME)|VIRTUAL_ENV|LATHE_.*|TORCHELASTIC_.*|MASTER_(ADDR|PORT)|([A-Z]+_)?(RANK|WORLD_SIZE)"
)
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}  # nothing is sent about its use


def environment() -> dict[str, str]:
    """The command's environment."""
    kept = {name: value for name, value in os.environ.items() if name == RUN_VARIABLE or not _OURS.fullmatch(name)}
    return kept | _QUIET


if __name__ == "__main__":
    die_with_parent()
    os.execvpe(sys.argv[1], sys.argv[1:], environment())  # noqa: S606 an argv list
