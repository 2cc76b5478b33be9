"""The settings data and validation_data with several data sets: what is accepted, how it is stored, what is refused."""

import pytest
import yaml

from training.config.data_sets import Source, has_weights, set_names, sources, written
from training.config.fields import ConfigError, parse
from training.config.yaml_file import read_config, to_yaml

MIXTURE = [{"path": "a.jsonl", "weight": 3.0}, {"path": "b/c.jsonl", "max_rows": 5}, {"path": "d, e.csv"}]


def config(data, **settings):
    return parse({"model": "m", "data": data} | settings)


def test_one_data_set_stays_a_path():
    for given in ("a, b.jsonl", ["a, b.jsonl"], [{"path": "a, b.jsonl"}], {"path": " a, b.jsonl "}):
        assert config(given).data == "a, b.jsonl"
    assert config("[draft] rows.jsonl").sources == (Source("[draft] rows.jsonl"),)


def test_lists_flags_and_text_give_the_same_setting():
    listed = config(MIXTURE)
    assert config(("a.jsonl, weight=3", "b/c.jsonl, max_rows=5", "d, e.csv")) == listed
    assert config(listed.data) == listed
    assert [source.weight for source in listed.sources] == [3.0, 1.0, 1.0]
    assert listed.mixes and has_weights(MIXTURE) and not config(["a", "b"]).mixes


def test_a_mapping_with_commas_is_quoted_in_a_flag():
    (first, _) = config(('a.jsonl, weight=2, columns="prompt=q, completion=a"', "b")).sources
    assert first == Source("a.jsonl", weight=2, columns="prompt=q, completion=a")


def test_a_file_has_the_list(tmp_path):
    text = to_yaml(config(MIXTURE, validation_data=["x", "y"]))
    assert yaml.safe_load(text)["data"] == MIXTURE
    file = tmp_path / "run.yaml"
    file.write_text(text)
    assert read_config(file) == config(MIXTURE, validation_data=["x", "y"])


def test_names_differ_and_fit_into_the_name_of_a_metric():
    names = set_names(
        [Source("x/a.jsonl"), Source("y/a.jsonl"), Source("id", name="n" * 90), Source("id2", name="n" * 90)]
    )
    assert names[:2] == ["a.jsonl", "a.jsonl (2)"]
    assert len(set(names)) == 4 and max(map(len, names)) <= 48


def test_names_of_stored_sets_give_the_title():
    assert config([{"path": "0" * 16, "name": "alpaca"}, {"path": "chat.jsonl"}]).title == "m on alpaca + chat.jsonl"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "is an empty list"),
        ([{"weight": 1}], "data set 1 has no path"),
        ([{"path": "a", "weight": 0}, "b"], "data set 1: weight must be a number above 0"),
        (["a", {"path": "b", "weight": True}], "data set 2: weight"),
        (["a", "b, max_rows=2.5"], "data set 2: max_rows must be an integer"),
        (["a, weight=1e300", "b"], "at most 1e9"),
        (["a", "a"], "has a twice"),
        ([{"path": "a", "wieght": 1}, "b"], "unknown key 'wieght'"),
        (["a", 3], "data set 2 is neither text nor a mapping"),
        ('[{"path": "a"', "not a valid JSON list"),
        ([f"{number}" for number in range(65)], "at most 64"),
    ],
)
def test_a_wrong_entry_is_named(data, words):
    with pytest.raises(ConfigError, match=words) as caught:
        config(data)
    assert caught.value.problems[0].field == "data"


def test_evaluation_data_has_no_weights():
    with pytest.raises(ConfigError, match="leave weights out"):
        config("a", validation_data=["x, weight=2", "y"])


def test_written_is_what_sources_reads():
    given = (Source("a", name="x", weight=1.5, max_rows=2, columns="text=t"), Source("b", weight=1.0))
    assert sources(written(given)) == given
