"""What a form of uploads may not be: parts without a name, names that no file can have, and fields that are no files."""

from pathlib import Path

import pytest
from subtest_table import table
from web import application, client

UPLOAD = "/gradio_api/upload"
EDGE = "edge"


@pytest.fixture
def api(home):
    return client()


def part(name, content=b"x\n", field="files"):
    """A part of a form whose file has this name (bytes, as it is sent); None: no file name at all."""
    quoted = b"" if name is None else b'; filename="' + name + b'"'
    return b'Content-Disposition: form-data; name="' + field.encode() + b'"' + quoted + b"\r\n\r\n" + content


def form(*parts):
    lines = [b"--" + EDGE.encode() + b"\r\n" + one + b"\r\n" for one in parts]
    return b"".join(lines) + b"--" + EDGE.encode() + b"--\r\n"


def sent(api, body, charset="", query=""):
    kind = f"multipart/form-data; boundary={EDGE}{charset}"
    return api.post(UPLOAD + query, content=body, headers={"Content-Type": kind})


def left():
    return {path for path in Path(application().state.uploads).rglob("*") if path.is_file()}


FORMS = {
    "an empty name": (form(part(b"")), ""),
    "no name": (form(part(None)), ""),
    "a NUL": (form(part(b"a\0b")), ""),
    "a folder": (form(part(b"/")), ""),
    "a folder above": (form(part(b"..")), ""),
    "this folder": (form(part(b".")), ""),
    "a surrogate": (form(part(rb"\ud800")), "; charset=unicode_escape"),
    "an escaped NUL": (form(part(rb"a\x00")), "; charset=unicode_escape"),
    "another field": (form(part(b"a", field="other")), ""),
    "a field that is no file": (form(part(None, field="other"), part(b"a")), ""),
    "a long field": (form(part(None, b"x" * 3_000_000, field="other")), ""),
    "a field without a name": (form(b'Content-Disposition: form-data; filename="a"\r\n\r\nx'), ""),
    "no disposition": (form(b"Content-Type: text/plain\r\n\r\nx"), ""),
    "a second form that ends early": (form(part(b"a"), part(b"b"))[:-20], ""),
    "no part": (form(), ""),
    "nothing": (b"", ""),
    "a form that ends early": (form(part(b"a"))[:-20], ""),
    "no form": (b"x" * 100, ""),
}


@table(("kind", "query"), [(kind, query) for kind in FORMS for query in ("", "?upload_id=x")])
def test_a_form_without_files_with_names_is_refused_and_leaves_nothing(api, kind, query):
    before, (body, charset) = left(), FORMS[kind]
    answer = sent(api, body, charset, query)
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    assert left() == before


@table(
    ("name", "kept"),
    [
        (b"../../etc/rows.jsonl", "rows.jsonl"),
        ("données 数据.jsonl".encode(), "données 数据.jsonl"),
        (rb"a\"b.jsonl", "ab.jsonl"),
        (b"<>?*", "file"),
        (b"a" * 4000, "a" * 200),
    ],
)
def test_other_names_are_kept_without_their_folders(api, name, kept):
    answer = sent(api, form(part(name)))
    assert answer.status_code == 200, answer.text
    (path,) = map(Path, answer.json())
    assert path.name == kept and path.read_bytes() == b"x\n"
    path.unlink()


@table("path", ["/api/datasets", "/api/datasets/check", "/api/archives", "/diagnose"])
def test_a_form_of_many_fields_is_refused_before_they_fill_the_memory(api, path):
    fields = [part(None, b"x", field=f"f{number}") for number in range(100)]
    kind = {"Content-Type": f"multipart/form-data; boundary={EDGE}"}
    answer = api.post(path, content=form(*fields, part(b"rows.jsonl", field="file")), headers=kind)
    assert answer.status_code == 400 and "Too many fields" in answer.text, answer.text


def test_files_of_one_name_are_separate(api):
    answer = sent(api, form(part(b"a", b"1"), part(b"a", b"2"), part(b"a", b"1")))
    paths = [Path(path) for path in answer.json()]
    assert [path.read_bytes() for path in paths] == [b"1", b"2", b"1"] and len(set(paths)) == 3
    for path in paths:
        path.unlink()
