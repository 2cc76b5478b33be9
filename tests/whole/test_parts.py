"""A part of Lathe is taken away by deleting its files: what is left trains a run and shows its pages without a dead link."""

import json
import re
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

import pytest
from installed import Installation, fetch, up
from subtest_table import table

from tools.house import PARTS, files_of, module, trees
from worker.machine.programs import PROGRAMS


@table("part", PARTS)
def test_no_program_of_the_rest_imports_a_part(part: str) -> None:
    taken, of_part = {module(path) for path in files_of(part, trees())}, PARTS[part]
    started = {"app.server", "app.cli.__main__", "worker.queue.tasks", *(program.module for program in PROGRAMS)}
    assert taken & {name for name in started if not name.startswith(of_part)} == set()
    assert any(name.startswith(of_part) for name in taken)


def links(address: str, page: str) -> Iterator[str]:
    for link in re.findall(r'href="([^"#]+)', fetch(urljoin(address, page)).decode()):
        whole = urlsplit(urljoin(f"{address}{page}", link.replace("&amp;", "&")))
        if whole.netloc == urlsplit(address).netloc:
            yield f"{whole.path}?{whole.query}"


def take_away(installation: Installation, *parts: str) -> None:
    for path in {path for part in parts for path in files_of(part, trees())}:
        (installation.site_packages / path).unlink()


@pytest.mark.train
@pytest.mark.slow
def test_without_its_parts_lathe_trains_and_no_link_is_dead(installation: Installation) -> None:
    take_away(installation, *PARTS)
    help_text = installation.run("lathe", "--help")
    assert "  run " in help_text and not re.search("^  (import|sweep|backup) ", help_text, re.MULTILINE)
    with up(installation) as address:
        few = ["--max-steps", "2", "--answer-rows", "2"]
        run = json.loads(installation.run("lathe", "run", "static/starter/quickstart.yaml", *few, "--follow", "--json"))
        assert run["status"] == "finished"
        seen, todo = set(), ["/", "/new", f"/run?id={run['id']}"]
        while todo:
            page = todo.pop()
            seen.add(page)
            followed = (link for link in links(address, page) if not link.startswith(("/static/", "/api/", "/assets/")))
            todo += {*followed} - seen - {*todo} if len(seen) < 60 else ()
    assert not any(page.startswith(("/sweep", "/new-sweep", "/import", "/playground")) for page in seen), seen
