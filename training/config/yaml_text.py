"""Reads YAML that a user wrote, with limits: a few hundred bytes with nested aliases can stand for terabytes.

`python -m training.config.yaml_text` reads the text on standard input, and prints its value, or `problem`, as JSON.
"""

import json
import sys
from itertools import chain
from typing import Any

import yaml

SHORT_TEXT = 2_048
"""The longest text, in characters, that is read at once: at most 50 ms, whatever it is."""
LONGEST_TEXT = 200_000  # which takes PyYAML about three seconds
LONGEST_EXPANDED = 4_000_000
"""Values and characters after each alias (`*name`) is replaced by what it stands for."""
DEEPEST = 100
_TOO_DEEP = f"it has more than {DEEPEST} levels of nesting"


class YamlTextError(ValueError):
    """A text that is not valid YAML, or exceeds a limit; the message names what is wrong."""


def load(text: str) -> Any:
    """The value of a YAML or JSON text, with aliases. Raises YamlTextError if it is not valid YAML, or exceeds one of the limits
    above."""
    if len(text) > LONGEST_TEXT:
        raise YamlTextError(f"it has {len(text):,} characters; at most {LONGEST_TEXT:,} are possible")
    try:
        return _loaded(text)
    except YamlTextError:
        raise
    except yaml.YAMLError as error:
        raise YamlTextError(str(error)) from None
    except RecursionError:
        raise YamlTextError(_TOO_DEEP) from None
    except (ValueError, OverflowError) as error:  # a date or a number that Python does not have
        raise YamlTextError(f"it has a value that cannot be read: {error}") from None


def _loaded(text: str) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _check(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _check(root: yaml.Node) -> None:
    """Measures a tree whose aliases are references to one node."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, depth: int) -> int:
        if depth > DEEPEST:  # also of a node that contains itself
            raise YamlTextError(f"{_TOO_DEEP}, or contains itself")
        if id(node) not in sizes:
            parts = [] if isinstance(node, yaml.ScalarNode) else node.value
            parts = chain(*parts) if isinstance(node, yaml.MappingNode) else parts  # of pairs
            own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
            sizes[id(node)] = 1 + own + sum(size(part, depth + 1) for part in parts)
        return sizes[id(node)]

    if (expanded := size(root, 0)) > LONGEST_EXPANDED:
        raise YamlTextError(f"its aliases expand to {expanded:,} characters; at most {LONGEST_EXPANDED:,} are possible")


def main() -> None:
    try:
        answer = {"value": load(sys.stdin.read())}
    except YamlTextError as error:
        answer = {"problem": str(error)}
    sys.stdout.write(json.dumps(answer, default=str) + "\n")


if __name__ == "__main__":
    main()
