"""`lathe mcp`, by the client of the protocol's own library."""

import asyncio
import json
import sys

import pytest
from commands import lathe
from played_run import PlayedRun

pytest.importorskip("mcp", reason="the package mcp is not installed")

from mcp import Client, StdioServerParameters

from app.cli.agents import tools
from app.cli.agents.entries import ENTRIES
from app.cli.agents.server import INSTRUCTIONS, server
from worker.store import database, run_list
from worker.store.tables import Status

ROWS = [{"prompt": f"Where is order {number}?", "completion": f"Order {number} is in Rome."} for number in range(30)]


def call(*calls, to=None):
    """The answers to calls (name, arguments) of one session."""

    async def session():
        async with Client(to or server()) as client:
            found = [await client.call_tool(name, arguments) for name, arguments in calls]
            return [one.structured_content for one in found]

    return asyncio.run(session())


@pytest.fixture
def rows(home):
    path = home / "orders.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_the_tools_say_what_they_do_and_which_change_something(home):
    async def listed():
        async with Client(server()) as client:
            assert client.instructions == INSTRUCTIONS
            return (await client.list_tools()).tools, (await client.list_resources()).resources

    found, documents = asyncio.run(listed())
    assert {tool.name for tool in found} == {tool.__name__ for tool in tools.TOOLS}
    for tool in found:
        changes = tool.name in {one.__name__ for one in tools.CHANGING}
        assert tool.description and tool.annotations.read_only_hint is not changes
        assert ("confirmed" in tool.input_schema["properties"]) is changes
    assert (
        len(json.dumps([tool.model_dump(mode="json") for tool in found])) < 24_000
    )  # what an agent reads at the start
    assert "lathe://docs/data" in {str(document.uri) for document in documents}


def test_nothing_changes_without_a_confirmation(rows):
    run = PlayedRun("queued")
    settings = {"model": "static/starter", "data": str(rows)}
    answers = call(
        ("add_data", {"path": str(rows)}),
        ("start_run", {"settings": settings}),
        ("stop_run", {"run": run.id}),
        ("export_run", {"run": run.id, "path": str(rows.parent / "x.zip")}),
        ("evaluate_run", {"run": run.id, "data": str(rows), "metrics": ["exact_match"]}),
    )
    assert all(answer["next"] == tools.NOT_YET for answer in answers)
    assert not (rows.parent / "x.zip").exists()
    with database.read() as session:
        [only] = run_list.listing(session=session)
    assert only.status is Status.QUEUED
    [listed] = call(("list_data", {}))
    assert listed["total"] == 0


def test_a_file_becomes_a_queued_run(rows):
    [added] = call(("add_data", {"path": str(rows), "confirmed": True}))
    settings = {"model": "static/starter", "data": added["id"], "lora_r": 4}
    checked, started, shown = call(
        ("check_run", {"settings": settings}),
        ("start_run", {"settings": settings, "confirmed": True}),
        ("list_runs", {"search": "status:queued"}),
    )
    assert "Fits" in checked["memory"] or "fits" in checked["memory"]
    assert started["status"] == "queued" and [run["id"] for run in shown["runs"]] == [started["id"]]
    [run] = call(("show_run", {"run": started["id"]}))
    assert run["settings"]["lora_r"] == 4


def test_errors_are_answers_with_their_fix(home):
    unknown, wrong, failed = call(
        ("show_run", {"run": "nothere"}),
        (
            "start_run",
            {"settings": {"model": "static/starter", "data": "rows.jsonl", "lora_r": "many"}, "confirmed": True},
        ),
        ("diagnose", {"log": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"}),
    )
    assert unknown["error"][0]["fix"] and wrong["error"][0]["field"] == "lora_r"
    assert "memory" in json.dumps(failed)


def test_settings_are_described(home):
    names, some = call(("describe_settings", {}), ("describe_settings", {"search": "lora rank"}))
    assert "learning_rate" in names["names"] and "lora_r" in some


@pytest.mark.slow
def test_an_agent_starts_the_command(home, monkeypatch):
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "app.cli", "mcp"], env={"LATHE_DATA_DIR": str(home)}
    )
    [answer] = call(("list_runs", {}), to=command)
    assert answer == {"total": 0, "runs": []}


@pytest.mark.parametrize("agent", ENTRIES)
def test_the_entry_of_an_agent(agent):
    text = lathe("mcp", "--entry", agent).output
    assert "lathe" in text and "mcp" in text
    if agent == "cursor":
        assert json.loads(text)["mcpServers"]["lathe"]["args"] == ["mcp"]
