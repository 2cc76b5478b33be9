"""The texts of Gradio's pages in the language of the request: components, what our handlers send, and no value among them."""

import ast
import json
import re
from functools import cache
from html import unescape
from typing import Any

import pytest
import web
from subtest_table import table

from app import texts
from app.pages.common import form
from app.pages.new_run import memory_panel, review, steps
from app.texts import _
from app.web.gradio_texts import texts_of
from tools.catalogue import KEYWORDS, ROOT

PAGES = ("/new", "/new-sweep", "/import", "/new-dataset")


@cache
def components(path: str, language: str = "de") -> list[dict[str, Any]]:
    """The components of a page as Gradio's configuration in the page describes them."""
    page = web.client().get(path, headers={"Cookie": f"lathe-language={language}"}).text
    source = re.search(r"window\.gradio_config = (.*?);</script>", page, re.DOTALL)
    assert source is not None
    return json.loads(source[1])["components"]


def props(path: str, key: str, value: str) -> dict[str, Any]:
    """What the browser gets of the one component with this property."""
    return next(one["props"] for one in components(path) if one["props"].get(key) == value)


@pytest.fixture
def german():
    """The language of this test, as the middleware sets it for a request."""
    texts.use("de")
    yield
    texts.use("")


def test_no_text_of_a_component_stays_english(subtests, german):
    in_german = {english: _(english) for path in PAGES for english in texts_of({"components": components(path, "")})}
    assert sum(english != translation for english, translation in in_german.items()) > 200
    for path in PAGES:
        with subtests.test(page=path):
            shown = set(texts_of({"components": components(path)}))
            assert not {text for text in shown - {*in_german.values()} if text in in_german}


@table(
    ("path", "id", "prop", "expected"),
    [
        ("/new", "setting-task", "label", "Aufgabe"),
        ("/new", "setting-learning_rate", "info", "Höchste Lernrate."),
        ("/new", "setting-task", "info", "Lernt die Antworten auf Prompts und Chats."),
        ("/new", "setting-validation_data", "label", "Validierungsdaten"),
        ("/new", "setting-columns", "placeholder", "keine"),
        ("/new", "start", "value", "Starten"),
        ("/new", "upload", "label", re.compile(r"Datensatz hochladen: \.json, ")),
        ("/new-sweep", "sweep-method", "label", "Methode"),
        ("/new-sweep", "add-varied", "value", "Einstellung hinzufügen"),
        ("/import", "import", "value", "Importieren"),
        ("/new-dataset", "way", "label", "Mehrere Dateien importieren als"),
    ],
)
def test_a_component_has_the_texts_of_the_language(path, id, prop, expected):
    shown = props(path, "elem_id", id)[prop]
    assert re.match(expected, shown) if isinstance(expected, re.Pattern) else shown == expected


def test_choices_keep_their_values_and_change_their_labels():
    in_german = dict(reversed(choice) for choice in props("/new", "elem_id", "setting-strategy")["choices"])
    assert in_german["single"] == "Ein Gerät"
    assert in_german["zero3"] == "ZeRO-Stufe 3"
    card = dict(reversed(choice) for choice in props("/new", "elem_id", "memory-gpu")["choices"])
    assert card["here"].startswith("Diese Maschine (")
    ways = dict(reversed(choice) for choice in props("/new-dataset", "elem_id", "way")["choices"])
    assert ways["one data set"] == "ein Datensatz"


def test_tabs_and_our_own_markup_are_translated_and_what_is_typed_is_not():
    labels = {one["props"].get("label") for one in components("/new") if one["type"] == "tabitem"}
    assert {"Befehl", "DeepSpeed oder FSDP"} <= labels
    markup = "".join(one["props"]["value"] for one in components("/new") if one["type"] == "html")
    assert "<h1>Neuer Lauf</h1>" in markup
    assert "<h2>Gerenderte Zeilen</h2>" in markup
    assert f'placeholder="Alle {len(json.loads(index(markup)))} Einstellungen durchsuchen"' in markup
    assert "<code>exclude_modules</code>" in markup
    assert 'title="/ drücken, um zu suchen">/</kbd>' in markup


def test_the_search_knows_the_labels_that_the_fields_show():
    markup = "".join(one["props"]["value"] for one in components("/new") if one["type"] == "html")
    settings, fields = (
        json.loads(index(markup)),
        {one["props"].get("elem_id"): one["props"] for one in components("/new")},
    )
    for name, known in settings.items():
        field = fields[f"setting-{name}"]
        assert field["label"] == known["label"]
        if known["choices"] and name not in ("data", "validation_data", "model"):
            assert field["choices"] == [[label, value] for value, label, _sentence in known["choices"]]
    assert settings["epochs"]["help"].endswith("In Dateien: epochs.")
    assert settings["lora_r"]["applies"] == "method lora oder qlora"


def test_what_handlers_answer_is_in_the_language_of_the_request(german):
    missing = "".join(steps.steps_html(review.review(form.defaults() | {"model": ""})))
    assert "Zum Starten auswählen: Modell, Daten." in missing
    wrong = "".join(steps.steps_html(review.review(form.defaults() | {"learning_rate": "abc"})))
    assert re.search(r'data-goto="learning_rate">Lernrate</button> <code>abc', wrong)
    texts.use("")
    assert "To start, choose: model, data." in str(steps.problems_html(review.review(form.defaults() | {"model": ""})))


def test_the_memory_forecast_is_in_the_language_of_the_request(german, database, tmp_path):
    empty = str(memory_panel.memory_html(form.defaults() | {"model": ""}, memory_panel.HERE, ""))
    assert "Ein Modell auswählen, um die Speicherprognose zu sehen." in empty
    small = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1024,
    }
    small |= {"num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 32000, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(small))
    answer = str(memory_panel.memory_html(form.defaults() | {"model": str(tmp_path)}, "t4", "1"))
    assert re.search(r'<b class="good">Passt</b>: [\d.]+ [GM]iB von [\d.]+ GiB je GPU\. Die Spitze liegt ', answer)
    assert ">Gewichte</dt>" in answer
    assert not re.search("Fits|The peak|Host RAM ", answer)


def index(markup: str) -> str:
    """The search's index of settings in the markup of New run."""
    found = re.search(r'data-index="([^"]*)"', markup)
    assert found is not None
    return unescape(found[1])


def test_english_pages_are_sent_as_gradio_made_them():
    shown = {text for path in PAGES for text in texts_of({"components": components(path, "")})}
    assert {"Learning rate", "Start", "New run", "Import multiple files as"} <= shown


def test_no_text_is_marked_inside_an_f_string_where_it_is_not_found_for_the_catalogue():
    marked = [
        f"{path}:{call.lineno}"
        for path in (ROOT / "app").rglob("*.py")
        for string in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(string, ast.JoinedStr)
        for call in ast.walk(string)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in KEYWORDS
        if call.args and isinstance(call.args[0], ast.Constant)
    ]
    assert not marked


def test_the_upload_box_speaks_the_language_of_the_page_and_not_the_browsers():
    page = web.client().get("/new-dataset", headers={"Cookie": "lathe-language=de"}).text
    assert 'style="--upload-words: &#34;Datei hier ablegen oder klicken&#34;"' in page
