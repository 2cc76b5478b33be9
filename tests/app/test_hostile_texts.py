"""Names, logs, rows, answers and errors with HTML and escape sequences harm neither a browser nor a terminal."""

import io
import logging

import pytest
from browser import IN_BROWSER, becomes_live, opened
from click.testing import CliRunner
from forked_server import server
from hostile_texts import CONTROLS, ESCAPES, HARM, HTML, plant
from prepared import prepared_installation  # noqa: F401
from web import client

from app.cli.__main__ import main
from app.cli.options import clear_line
from app.web.addresses import PAGES
from training.redaction import ChangedStream, markdown_text, printable

QUERIES = {
    "/run": ["?id={finished}", "?id={failed}", "?id={waiting}"],
    "/dataset": ["?id={dataset}", "?id={dataset}&tab=rows", "?id={dataset}&tab=columns"],
    "/sweep": ["?id={sweep}"],
    "/compare": ["?runs={finished},{failed}"],
    "/new": ["?clone={finished}"],
    "/new-sweep": ["?clone={finished}"],
}
COMMANDS = (
    "runs", "show {finished}", "show {failed}", "logs {finished}", "compare {finished} {failed}", "diagnose --run {failed}",
    "dataset list", "dataset show {dataset}", "dataset rows {dataset}", "sweep list", "sweep show {sweep}", "queue",
    "evaluations {finished}", "samples {finished}", "system", "stop {finished}", "delete {waiting}", f"show {HARM}",
    f"dataset show {HARM}",
)  # fmt: skip


@pytest.fixture
def harmed(prepared):
    plant()
    return prepared


def addresses(prepared):
    return [page.path + query.format(**vars(prepared)) for page in PAGES for query in QUERIES.get(page.path, [""])]


def test_no_page_has_html_of_what_it_shows(harmed, subtests):
    web, drawn = client(), ""
    for address in addresses(harmed):
        with subtests.test(address):
            answer = web.get(address)
            assert answer.status_code == 200
            assert "<script>window.harmed" not in answer.text and "<img src=x" not in answer.text
            drawn += answer.text
    assert drawn.count("&lt;script&gt;window.harmed") > 20


def test_no_command_prints_a_control_character(harmed, subtests):
    printed = ""
    for command in COMMANDS:
        words = [HARM if word.startswith("harm") else word.format(**vars(harmed)) for word in command.split(" ", 2)]
        with subtests.test(command):
            result = CliRunner().invoke(main, words, color=True)
            assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
            assert CONTROLS.findall(result.output) == []
            printed += result.output
    assert printed.count("harm\ufffd]0;harm") > 20


def test_a_terminal_gets_only_our_own_escape_sequences():
    screen = io.StringIO()
    stream = ChangedStream(screen, printable)
    clear_line(stream)
    stream.write(ESCAPES + "é 日\tend\r\n")
    assert screen.getvalue() == "\r\x1b[2K\ufffd]0;harm\ufffd\ufffd[2J\ufffd31m\ufffd\ufffdé 日\tend\n"


def test_a_worker_s_log_has_no_control_character_and_no_secret():
    from worker.queue import tasks

    screen, logger = io.StringIO(), logging.Logger("worker")
    logger.addHandler(logging.StreamHandler(screen))
    tasks.after_setup_logger.send(sender=None, logger=logger)
    logger.warning("run %s with hf_abcdefgh12345678", HARM)
    assert CONTROLS.findall(screen.getvalue()) == [] and "hf_[redacted]" in screen.getvalue()


def test_a_text_is_one_line_of_markdown_without_markup():
    assert markdown_text(f"a\n# b|`c` {HTML}{ESCAPES}") == (
        "a \\# b\\|\\`c\\` \\<script\\>window.harmed = true\\</script\\>\\<img src=x onerror='window.harmed = true'\\> \\]0;harm "
        "\\[2J 31m"
    )


@pytest.mark.nightly
class TestInBrowser:
    pytestmark = IN_BROWSER

    def test_no_page_runs_what_it_shows(self, harmed, request):
        with server(harmed.home) as served, opened(request.config, served.address) as page:
            for address in addresses(harmed):
                page.goto(address)
                becomes_live(page)
                assert page.evaluate("window.harmed") is None, address
                assert page.locator("img[src=x]").count() == 0, address
