"""What the browser loads for a page: gzipped, and little of it."""

import re

from web import client

from app.web.addresses import PAGES

MOST = 60_000  # bytes of scripts and styles beside uPlot


def loaded(api, text):
    """The responses of the page's scripts and style sheets by address."""
    addresses = re.findall(r'(?:src|href)="(/static/lathe/[^"]+\.(?:js|css)\?[^"]+)"', text)
    return {address: api.get(address) for address in addresses}


def test_a_page_that_is_read_loads_at_most_60_kb_of_scripts_and_styles(home):
    api = client()
    for page in (page for page in PAGES if page.is_read):
        files = loaded(api, api.get(page.path).text)
        sizes = {name: int(file.headers["content-length"]) for name, file in files.items() if "uPlot" not in name}
        assert 0 < sum(sizes.values()) <= MOST, (page.path, sizes)


def test_pages_and_files_are_gzipped_for_clients_that_accept_it_and_have_the_same_content(home):
    api = client()
    style = next(iter(loaded(api, api.get("/").text)))
    for address in ("/start", "/new", style):
        packed, plain = (api.get(address, headers={"Accept-Encoding": coding}) for coding in ("gzip", "identity"))
        assert packed.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
        assert "accept-encoding" in packed.headers["vary"].lower()
        assert int(packed.headers["content-length"]) < len(plain.content) / 2
        nonce = re.compile(r'nonce="[^"]+"')
        assert nonce.sub("", packed.text) == nonce.sub("", plain.text)
