"""The card of a result shows texts of people as text, whatever is in them."""

import re

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.run_folder.model_card import write_card
from training.run_folder.record import DataSource, Lineage

HARM = "a | b\n# c <img src=x> [link](http://x) `code` \x1b[31m"
SUMMARY = {
    "strategy": {"engine": "Model", "world_size": 1, "precision": "fp32"},
    "optimizer": "AdamW",
    "steps": 1,
    "trainable_parameters": 1,
    "total_parameters": 2,
}


def test_names_and_settings_are_no_markup(tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    config = RunConfig(
        model="/models/a`b<img src=x>", data="d.jsonl", chat_template="{{ x }}\n```\n<img src=x>\n````\n{{ y }}"
    )
    lineage = Lineage(run="r1", name=HARM, data=[DataSource("training", HARM, "0" * 64)])
    write_card(folder, config, SUMMARY, lineage, Machine())
    text = (folder / "README.md").read_text()
    card, fence, settings = text.partition("`````yaml\n")
    assert fence and "<img src=x>" in settings and settings.endswith("`````\n") and settings.count("`````") == 1
    assert not re.search(r"(?<!\\)<|\x1b|^# c|(?<!\\)\[link", card, re.MULTILINE), card
    row = next(line for line in card.splitlines() if line.startswith("| training |"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
