"""Duplicate and near-duplicate rows."""

from pathlib import Path

import numpy as np

from training.tokens.duplicates import exact_duplicates, row_hashes, shared_rows
from training.tokens.groups import Compared


def flat(rows):
    return np.array([token for row in rows for token in row], np.int32), np.array([len(row) for row in rows])


def near(folder: Path, rows, chunk=1000):
    """The earlier row of each near duplicate, -1 of other rows."""
    compared, exact = Compared(folder), exact_duplicates(row_hashes(*flat(rows)))
    for start in range(0, len(rows), chunk):
        part = rows[start : start + chunk]
        compared.add(*flat(part), [""] * len(part))
    groups = compared.groups(exact)
    return np.where((groups != np.arange(len(groups))) & (exact < 0), groups, -1)


def random_rows(count, seed=0, length=100):
    return np.random.default_rng(seed).integers(5, 5000, (count, length)).tolist()


def test_identical_rows_are_duplicates_of_the_first():
    rows = [[1, 2, 3], [3, 2, 1], [], [1, 2, 3], [1, 2], [], [1, 2, 3], [1, 2, 3, 0]]
    assert exact_duplicates(row_hashes(*flat(rows))).tolist() == [-1, -1, -1, 0, -1, -1, 0, -1]


def test_a_hash_depends_only_on_the_tokens_of_a_row():
    rows = random_rows(20)
    together = row_hashes(*flat(rows))
    assert together.tolist() == [int(row_hashes(*flat([row]))[0]) for row in rows]
    assert len(set(together.tolist())) == 20


def test_a_row_with_few_changed_tokens_is_a_near_duplicate(tmp_path):
    rows = random_rows(50)
    slightly, heavily = rows[7].copy(), rows[8].copy()
    slightly[50:52] = [1, 2]
    heavily[::6] = [1] * len(heavily[::6])
    duplicates = near(tmp_path, [*rows, slightly, heavily])
    assert duplicates[50] == 7
    assert np.count_nonzero(duplicates >= 0) == 1


def test_exact_duplicates_do_not_count_as_near_duplicates(tmp_path):
    rows = random_rows(10)
    assert near(tmp_path, [*rows, rows[3]]).tolist() == [-1] * 11


def test_a_long_shared_prefix_does_not_make_near_duplicates(tmp_path):
    system = list(range(400))
    rows = [system + row for row in random_rows(200, length=30)]
    assert np.count_nonzero(near(tmp_path, [*rows, rows[5][:-1]]) >= 0) == 1


def test_near_duplicates_are_found_across_chunks_and_short_rows_have_none(tmp_path):
    rows = random_rows(30)
    again = [[*row[:-1], 4] for row in rows]
    duplicates = near(tmp_path, [[9], *rows, [], [9, 9], *again], chunk=7)
    assert duplicates.tolist() == [-1] * 33 + list(range(1, 31))


def test_held_out_rows_in_the_training_data_are_paired_with_the_first_such_row():
    train = row_hashes(*flat([[1], [2], [], [3], [2]]))
    held_out = row_hashes(*flat([[5], [2], [], [3], [2]]))
    first, again = shared_rows(train, held_out)
    assert list(zip(first.tolist(), again.tolist(), strict=True)) == [(1, 1), (3, 3), (1, 4)]
