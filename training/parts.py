"""Parts of Lathe that an installation can do without.

The rest names the modules of such a part in tables, loads them by name, and leaves out the rows of those that are not here. So a
part is taken away by deleting its files: `python -m tools.house --parts` lists them, and tests/whole/test_parts.py deletes them.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@cache
def is_here(module: str) -> bool:
    """True if this installation has the module. Looks for its file and imports nothing: a package may name modules of itself."""
    package, *names = module.split(".")
    spec = find_spec(package)
    path = Path(((spec and spec.submodule_search_locations) or [""])[0], *names)
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def named(target: str) -> Any:
    """What `module:name` means; the module is imported."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def present(*targets: str) -> list[Any]:
    """What those of the targets mean, each `module:name`, whose modules are here."""
    return [named(target) for target in targets if is_here(target.partition(":")[0])]
