"""Reads the code of Jupyter notebooks: Python and the shell commands in it."""

import json
import re

LONGEST_NOTEBOOK = 20_000_000
"""Characters of a notebook, most of which are outputs."""
_SHELL_LINE = re.compile(r"^([ \t]*)!((?:.*\\\n)*.*)", re.MULTILINE)


def of_notebook(text: str) -> tuple[str, str] | None:
    """The Python text and the shell text of a notebook's cells, without their outputs; None if the text is no notebook."""
    if len(text) > LONGEST_NOTEBOOK or '"cells"' not in text or not text.lstrip().startswith("{"):
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    cells = values.get("cells") if isinstance(values, dict) else None
    if not isinstance(cells, list):
        return None
    sources = [cell.get("source", "") for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    texts = ["".join(map(str, source)) if isinstance(source, list) else str(source) for source in sources]
    shell = [text.partition("\n")[2] for text in texts if text.startswith(("%%bash", "%%sh"))]
    shell += [line for text in texts for _, line in _SHELL_LINE.findall(text)]
    return "\n".join(_SHELL_LINE.sub(r"\1pass", text) for text in texts if not text.startswith("%%")), "\n".join(shell)
