"""The pictures in docs/ show the pages as they are."""

import json
import re

from paths import ROOT

from app.web.addresses import PAGES


def test_the_pictures_show_the_present_navigation():
    shown = json.loads((ROOT / "docs" / "pictures.json").read_text(encoding="utf-8"))["navigation"]
    assert shown == [page.name for page in PAGES if page.in_header], "Run `make screenshots`."


def test_every_picture_in_a_document_exists():
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for name in re.findall(r"!\[[^\]]*\]\(([^)#]+\.(?:png|webp))\)", document.read_text(encoding="utf-8")):
            assert (document.parent / name).is_file(), f"{document.name} shows {name}"
