"""`python -m tools.catalogue` brings app/translations/*.po up to date with the texts of the pages, and lists what is missing.

Texts come from the source (`_`, `ngettext`, `gettext_noop`, `{% trans %}`), from the components of Gradio's pages, and from the
settings of a run. A text that is gone leaves the catalogue.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_from_file
from babel.messages.pofile import read_po, write_po

from app import texts
from app.access import uploads
from app.documents.comparison.result_lines import LAST, RESULTS
from app.documents.live.panels import PANELS
from app.format.forecast_text import PEAKS
from app.pages import build
from app.server import within_event_loop
from app.texts import PLOTS
from app.web.gradio_texts import texts_of
from training.config.applies import APPLIES
from training.config.fields import BOUNDS, settings
from training.config.peft_methods import OR, TYPES, methods
from training.forecast.forecast import HOST_MOMENTS
from training.foreign.entries import Outcome
from training.run_folder.derived import GgufType

ROOT = Path(__file__).resolve().parents[1]
KEYWORDS = {
    "_": None,
    "gettext_noop": None,
    "gettext": None,
    "ngettext": (1, 2),
    "pgettext": ((1, "c"), 2),
    "plural": (2, 3),
}
SOURCES = {"app/**/*.py": "python", "app/**/*.html": "jinja2.ext:babel_extract", "static/*.js": "javascript"}
_TEMPLATES = {"trimmed": "true", "trim_blocks": "true", "lstrip_blocks": "true", "silent": "false"}
_WIDTH = 132


def texts_of_pages() -> Catalog:
    """Every text of the pages, without translations."""
    catalogue = Catalog(charset="utf-8")
    for location, text in (*_of_components(), *_of_settings(), *_of_tables()):
        catalogue.add(text, locations=[(location, 0)])
    for location, marked, context in _of_source():
        catalogue.add(marked, locations=[(location, 0)], context=context)
    return catalogue


def _of_source() -> Iterator[tuple[str, str | tuple[str, ...], str | None]]:
    for pattern, method in SOURCES.items():
        for path in sorted(ROOT.glob(pattern)):
            for _, text, _, context in extract_from_file(method, path, KEYWORDS, options=_TEMPLATES):
                yield str(path.relative_to(ROOT)), text, context


def _of_components() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault(uploads.FOLDER, folder)
        config = within_event_loop(build).get_config_file()
    yield from (("app/pages", text) for text in texts_of(dict(config)))


def _of_settings() -> Iterator[tuple[str, str]]:
    items = settings().values()
    words = {*BOUNDS, *TYPES.values(), OR, *(rule.words for rule in APPLIES.values())}
    words |= {text for item in items for text in (item.label, item.sentence, item.group.value)}
    words |= {text for item in items for text in (*item.choice_labels, *item.choice_sentences)}
    words |= {option.help for method in methods().values() for option in method.options.values()}
    yield from (("training/config", text) for text in words if text)


def _of_tables() -> Iterator[tuple[str, str]]:
    """The words of the results of a comparison, of the plots of a run, of a forecast, of an import, and of the types of GGUF."""
    for result in (*RESULTS, *LAST):
        yield from (("app/documents", text) for text in (result.label, result.group, result.short))
    for panel in PANELS:
        yield from ((PLOTS, text) for text in (panel.title, *(line.label for line in panel.lines)))
    yield from (("training/forecast", moment) for moment in (*PEAKS.values(), *HOST_MOMENTS.values()))
    yield from (("training/foreign", outcome.value) for outcome in Outcome)
    yield from (("training/run_folder", kind.meaning) for kind in GgufType)


def updated(code: str) -> Catalog:
    """The catalogue of a language with exactly the texts of the pages; new ones are not translated yet."""
    path = texts.FOLDER / f"{code}.po"
    kept = read_po(path.open("rb"), locale=code) if path.is_file() else Catalog(code)
    catalogue = Catalog(code, charset="utf-8")
    for message in sorted(texts_of_pages(), key=_order):
        if message.id:
            old = kept.get(message.id, message.context)
            catalogue.add(
                message.id,
                old.string if old else "",
                locations=sorted({file: 0 for file, _ in message.locations}.items()),
                context=message.context,
            )
    return catalogue


def missing(catalogue: Iterable[Message]) -> list[Message]:
    """The texts without a translation, or without one for each form."""
    return [message for message in catalogue if message.id and not all(_forms(message))]


def _forms(message: Message) -> tuple[str, ...]:
    return (message.string or "",) if isinstance(message.string, str | None) else tuple(message.string)


def _order(message: Message) -> tuple[str, str]:
    return (
        min(file for file, _ in message.locations) if message.locations else "",
        f"{message.id}{message.context or ''}",
    )


def main() -> None:
    """Writes the catalogues."""
    for code in filter(None, texts.LANGUAGES):
        catalogue = updated(code)
        with (texts.FOLDER / f"{code}.po").open("wb") as target:
            write_po(target, catalogue, width=_WIDTH, include_lineno=False, omit_header=True)
        left = missing(catalogue)
        print(f"{code}: {len(catalogue)} texts, {len(left)} without a translation")
        for message in left:
            print(f"  {message.locations[0][0]}: {message.id!r}")


if __name__ == "__main__":
    main()
