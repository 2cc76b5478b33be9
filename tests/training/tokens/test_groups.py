"""Groups of rows that a split does not divide."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from training.tokens import groups
from training.tokens.duplicates import row_hashes
from training.tokens.store import TokenStore, joined
from worker.settings import ROOT


def store(folder, rows):
    """A token store with only what groups are made of."""
    folder.mkdir()
    lengths = np.array([len(row) for row in rows])
    tokens = np.array([token for row in rows for token in row], np.int32)
    tokens.tofile(folder / "tokens.i32")
    np.cumsum(lengths, dtype=np.int64).tofile(folder / "ends.i64")
    row_hashes(tokens, lengths).tofile(folder / "hashes.u64")
    words = models.WordLevel({f"t{token}": token for token in range(5000)}, unk_token="t0")
    Tokenizer(words).save(str(folder / "tokenizer.json"))
    (folder / "facts.json").write_text(f'{{"rows": {len(rows)}}}')
    return TokenStore(folder)


def random_rows(count, seed=0, length=100):
    return np.random.default_rng(seed).integers(5, 5000, (count, length)).tolist()


def changed(row, *places):
    return [4 if place in places else token for place, token in enumerate(row)]


def test_equal_and_similar_rows_are_of_the_group_of_the_first(tmp_path):
    rows = random_rows(30)
    data = store(tmp_path / "a", [*rows, rows[3], changed(rows[3], 50), [], [], changed(rows[9], 0)])
    assert groups.near_groups(data).tolist() == [*range(30), 3, 3, 32, 33, 9]


def test_rows_that_are_similar_through_a_row_between_them_are_of_one_group(tmp_path):
    chain = random_rows(1)
    for step in range(12):
        chain.append(changed(chain[-1], 8 * step))
    for number in range(3):
        order = np.random.default_rng(number).permutation(len(chain))
        data = store(tmp_path / str(number), [*(chain[at] for at in order), *random_rows(15, 1)])
        assert groups.near_groups(data).tolist() == [0] * 13 + list(range(13, 28))
    ends = store(tmp_path / "ends", [chain[0], chain[-1]])
    assert groups.near_groups(ends).tolist() == [0, 1]


def test_a_group_has_rows_of_several_data_sets_and_is_kept_with_the_first(tmp_path, monkeypatch):
    rows = random_rows(2500)
    first, second = store(tmp_path / "a", rows), store(tmp_path / "b", [*random_rows(9, 1), changed(rows[2400], 40)])
    both, seen = joined([first, second]), []
    assert groups.known_near_groups(both) is None
    found = groups.near_groups(both, lambda done, total: seen.append((done, total)))
    assert found.tolist() == [*range(2509), 2400]
    assert seen == [(1000, 2510), (2000, 2510), (2500, 2510), (2510, 2510)]
    assert groups.known_near_groups(both).tolist() == found.tolist()
    assert groups.known_near_groups(first) is None
    monkeypatch.setattr(groups, "_computed", None)
    assert groups.near_groups(both).tolist() == found.tolist()
    assert not list(tmp_path.glob(".making-*"))


def test_what_a_failure_leaves_is_deleted(tmp_path, monkeypatch):
    data = store(tmp_path / "a", random_rows(5))
    with pytest.raises(OSError, match="full"):
        groups.near_groups(data, lambda *_: (_ for _ in ()).throw(OSError("full")))
    assert not list(tmp_path.glob(".making-*")) and groups.known_near_groups(data) is None


def test_rows_with_the_same_value_are_a_group_and_those_without_one_are_not():
    assert groups.groups_of_values(["a", "", "b", "a", ""]).tolist() == [0, 1, 2, 0, 4]


def test_short_rows_that_differ_in_a_letter_are_of_one_group(tmp_path):
    tokenizer = Tokenizer.from_file(str(ROOT / "static" / "starter" / "tokenizer.json"))
    texts = ["How do I reset my password?", "Where is my parcel now?", "how do I reset my pasword?", "Order 12 is late"]
    data = store(tmp_path / "a", [tokenizer.encode(text).ids for text in texts])
    tokenizer.save(str(data.folder / "tokenizer.json"))
    assert groups.near_groups(data).tolist() == [0, 1, 0, 3]
