"""JSON files that models and archives bring are read within limits."""

import pytest

from training import json_files
from training.json_files import JsonTextError


def test_a_file_and_its_lines_are_read(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": NaN}\n{"b": "\\ud800"}\n')
    assert [list(value) for value in json_files.lines(file)] == [["a"], ["b"]]
    file.write_text('{"a": [1, 2]}')
    assert json_files.read(file) == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 19_000, "nesting"),
        ("[" + "1," * json_files.MOST_FILE_VALUES + "1]", "values"),
        ("{", "Expecting"),
    ],
)
def test_what_would_stop_the_process_is_refused(tmp_path, text, reason):
    file = tmp_path / "a.json"
    file.write_text(text)
    for read in (json_files.read, lambda path: [*json_files.lines(path)]):
        with pytest.raises(JsonTextError, match=reason):
            read(file)


def test_a_long_file_and_a_long_line_are_refused(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('"' + "a" * json_files.MOST_LINE_BYTES + '"')
    with pytest.raises(JsonTextError, match="a line is longer"):
        next(json_files.lines(file))
    with pytest.raises(JsonTextError, match="longer than 1,000 bytes"):
        json_files.read(file, 1000)
