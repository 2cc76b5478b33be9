"""Rows of interfaces and of public data sets with a form of their own, as rows of a known format, or refused with their name."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from training.data.conversations import CONVERSATION_COLUMNS, from_json
from training.data.example import Row, kind_of
from training.errors import DataError


class RowForm(NamedTuple):
    """The columns by which rows are recognized, all of their columns that are read, the row of a known format, and in words what
    becomes of them."""

    name: str
    columns: tuple[str, ...]
    read: frozenset[str]
    row: Callable[[Row], Row]
    meaning: str


def known_row(row: Row) -> Row:
    """The row in a known format, if it has a form of its own; else the row. Raises DataError if its form is known and cannot be
    read, or a value is not of the form."""
    form = _form(row)
    return form.row(row) if form else _with_system(row)


def form_name(row: Row) -> str | None:
    """The name of a row's own form."""
    form = _form(row)
    return form.name if form else None


def read_columns(names: Collection[str]) -> frozenset[str]:
    """The columns that rows with these columns use, if they have a form of their own, or beside a known format."""
    form = next((form for form in FORMS if {*form.columns} <= {*names}), None)
    more = frozenset({_SYSTEM}) if _SYSTEM in names and "system" not in names else frozenset()
    return form.read if form else more


def _form(row: Row) -> RowForm | None:
    if _MARKS.isdisjoint(row):
        return None
    return next((form for form in FORMS if {*form.columns} <= row.keys()), None)


_SYSTEM = "system_prompt"


def _with_system(row: Row) -> Row:
    """The row with its column system_prompt as the system prompt, which is how several data sets name it."""
    if _SYSTEM not in row or "system" in row:
        return row
    return {name: value for name, value in row.items() if name != _SYSTEM} | {"system": row[_SYSTEM]}


def _openai_pair(row: Row) -> Row:
    given = from_json(row["input"])
    if not isinstance(given, dict) or not isinstance(given.get("messages"), list):
        fix = 'Write {"messages": [...]}, as OpenAI\'s preference fine-tuning does.'
        raise DataError(f"is {kind_of(given)}, not an object with messages.", fix, field="input")
    answers = {"chosen": row["preferred_output"], "rejected": row["non_preferred_output"]}
    return {"prompt": given["messages"], **answers} | ({"tools": given["tools"]} if given.get("tools") else {})


def _safe_pair(row: Row) -> Row:
    better = row["better_response_id"]
    if better not in (0, 1) or isinstance(better, bool):
        fix = "Write 0 or 1, the number of the better response."
        raise DataError(f"is {better!r}, not the number of a response.", fix, field="better_response_id")
    chosen, rejected = row[f"response_{better}"], row[f"response_{1 - better}"]
    return {"prompt": row["prompt"], "chosen": chosen, "rejected": rejected}


def _shp_pair(row: Row) -> Row:
    label = row["labels"]
    if label not in (0, 1):
        fix = "Write 1 if human_ref_A is better, 0 if human_ref_B is."
        raise DataError(f"is {label!r}, which does not say which answer is better.", fix, field="labels")
    first, second = row["human_ref_A"], row["human_ref_B"]
    return {"prompt": row["history"], "chosen": first if label else second, "rejected": second if label else first}


def _tagged(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "kto_tag"} | {"label": row["kto_tag"]}


def _gemini(row: Row) -> Row:
    """Gemini's contents: roles user and model, texts in parts."""
    turns = []
    system = row.get("systemInstruction", row.get("system_instruction"))
    listed = from_json(row["contents"])
    if not isinstance(listed, list):
        raise DataError(f"is {kind_of(listed)}, not a list of turns.", "Write a list of objects.", field="contents")
    for index, turn in enumerate(([{**system, "role": "system"}] if isinstance(system, dict) else []) + listed):
        place, parts = f"contents[{index}]", turn.get("parts") if isinstance(turn, dict) else None
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise DataError("is not a turn of Gemini.", 'Write {"role": ..., "parts": [{"text": ...}]}.', field=place)
        if other := next((key for part in parts for key in part if key != "text"), None):
            fix = "Write the row in OpenAI's form (messages), which has tool_calls, or leave it out."
            raise DataError(f"has a part {other} of Gemini's, and only text is read.", fix, field=place)
        turns.append({"role": turn.get("role", "user"), "content": "".join(str(part["text"]) for part in parts)})
    return {"messages": turns}


def _xlam(row: Row) -> Row:
    """xLAM's function calls: a question, the calls that answer it, and the tools with their parameters as a plain object."""
    calls, tools = from_json(row["answers"]), from_json(row["tools"])
    if not isinstance(calls, list) or not all(isinstance(call, dict) and "name" in call for call in calls):
        fix = 'Write [{"name": ..., "arguments": {...}}] as JSON text.'
        raise DataError("is not a list of calls, as xLAM's rows have it.", fix, field="answers")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise DataError(f"is {kind_of(tools)}, not a list of tools.", "Write a list of objects.", field="tools")
    answer = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": call} for call in calls],
    }
    question = {"role": "user", "content": row["query"]}
    return {
        "messages": [question, answer],
        "tools": [{"type": "function", "function": _schema(tool)} for tool in tools],
    }


def _schema(tool: Row) -> Row:
    """A tool with its parameters as a JSON schema."""
    given = tool.get("parameters")
    if not isinstance(given, dict) or "properties" in given or not all(isinstance(one, dict) for one in given.values()):
        return tool
    required = [name for name, one in given.items() if "default" not in one and "optional" not in str(one.get("type"))]
    return tool | {"parameters": {"type": "object", "properties": given, "required": required}}


def _of(name: str, columns: str, row: Callable[[Row], Row], meaning: str, more: Collection[str] = ()) -> RowForm:
    names = tuple(columns.split())
    return RowForm(name, names, frozenset([*names, *more]), row, meaning)


def _refused(name: str, columns: str, message: str, fix: str, field: str) -> RowForm:
    def refuse(_: Row) -> Row:
        raise DataError(message, fix, field=field)

    return _of(name, columns, refuse, f"refused. {fix}")


_CHAT = (*CONVERSATION_COLUMNS, "prompt", "completion", "instruction", "input", "output", "system", "tools", "history")
FORMS = (
    _of("OpenAI's preferences", "input preferred_output non_preferred_output", _openai_pair,
        "a pair of answers to the messages of input, with its tools"),
    _of("PKU-SafeRLHF", "prompt response_0 response_1 better_response_id", _safe_pair, "a pair"),
    _of("SHP", "history human_ref_A human_ref_B labels", _shp_pair, "a pair; with labels 1, human_ref_A is the chosen answer"),
    _of("answers with kto_tag", "kto_tag", _tagged, "an unpaired preference, whose label is kto_tag", _CHAT),
    _of("Gemini", "contents", _gemini, "a chat; with other parts than text, refused", ("systemInstruction", "system_instruction")),
    _of("xLAM", "query answers tools", _xlam, "a chat whose answer is the calls, and whose tools get a schema"),
    _refused("Glaive", "system chat",
        "is a conversation of Glaive's, one text with USER, ASSISTANT and FUNCTION RESPONSE.",
        "Use a version of the data set with messages (such as one in ShareGPT's form), or split the text into messages.", "chat",
    ),
    _refused("UltraFeedback", "instruction completions",
        "has the rated answers of UltraFeedback, not a pair.",
        "Use its binarized version (columns chosen and rejected), or choose two answers of each row.", "completions",
    ),
    _refused("Nectar", "prompt answers num_responses",
        "has the ranked answers of Nectar, not a pair.",
        "Write the answers of the lowest and the highest rank as chosen and rejected.", "answers",
    ),
    _refused("pandas' split form", "columns index data",
        "is a table in pandas' split form, not a list of rows.",
        'Save it with df.to_json(path, orient="records", lines=True).', "data",
    ),
)  # fmt: skip
"""In the order in which they are looked for."""
_MARKS = frozenset(name for form in FORMS for name in form.columns)
