"""A frame of a traceback, and whose code it runs."""

import re
from dataclasses import dataclass

_INSTALLED = re.compile(r"(?:site|dist)-packages/|/lib/python\d")
_PASSING = re.compile(
    r"(?:^|[.>])(?:__get(?:attr|attribute|item)__|_find_and_load\w*|_call_with_frames_removed|wrapp\w*|_?inner\w*|decorate\w*"
    r"|_?wrapped_\w*|_call_impl)$"
)
"""Functions that only pass on a call, or look up a name."""
_GENERATED = re.compile(r"<(?:string|frozen [\w.]+|template)>$")
"""Code that other code made: it belongs to whoever ran it."""


@dataclass(frozen=True)
class Frame:
    """A frame of a traceback: the file, the function and the line of code."""

    file: str
    function: str
    code: str

    @property
    def installed(self) -> bool:
        """True if its code is of an installed package or of Python itself, not of the user."""
        return bool(_INSTALLED.search(self.file.replace("\\", "/")))


def raised_by_package(frames: tuple[Frame, ...]) -> bool:
    """True if the code that raised the exception is an installed package's."""
    own = [one for one in frames if not _PASSING.search(one.function) and not _GENERATED.match(one.file)]
    return bool(own) and own[-1].installed
