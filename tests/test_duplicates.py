"""Rows that repeat an earlier one, and rows much like one."""

from pathlib import Path

import numpy as np

from training.duplicates import Signatures, exact_duplicates, near_duplicates, row_hashes, shared_rows


def flat(rows):
    return np.array([token for row in rows for token in row], np.int32), np.array([len(row) for row in rows])


def near(folder: Path, rows, chunk=1000):
    signatures = Signatures(folder)
    for start in range(0, len(rows), chunk):
        signatures.add(*flat(rows[start : start + chunk]))
    signatures.close()
    return near_duplicates(folder, exact_duplicates(row_hashes(*flat(rows))))


def random_rows(count, seed=0, length=100):
    return np.random.default_rng(seed).integers(5, 5000, (count, length)).tolist()


def test_the_same_tokens_in_the_same_order_are_a_duplicate_of_the_first_such_row():
    rows = [[1, 2, 3], [3, 2, 1], [], [1, 2, 3], [1, 2], [], [1, 2, 3], [1, 2, 3, 0]]
    assert exact_duplicates(row_hashes(*flat(rows))).tolist() == [-1, -1, -1, 0, -1, -1, 0, -1]


def test_a_hash_hangs_on_the_row_alone_and_not_on_its_place():
    rows = random_rows(20)
    together = row_hashes(*flat(rows))
    assert together.tolist() == [int(row_hashes(*flat([row]))[0]) for row in rows]
    assert len(set(together.tolist())) == 20


def test_a_row_with_a_few_tokens_changed_is_a_near_duplicate_and_one_with_many_is_not(tmp_path):
    rows = random_rows(50)
    slightly, heavily = rows[7].copy(), rows[8].copy()
    slightly[50:52] = [1, 2]
    heavily[::6] = [1] * len(heavily[::6])
    found = near(tmp_path, [*rows, slightly, heavily])
    assert found[50] == 7
    assert np.count_nonzero(found >= 0) == 1


def test_what_is_exactly_the_same_is_not_counted_as_near_too(tmp_path):
    rows = random_rows(10)
    assert near(tmp_path, [*rows, rows[3]]).tolist() == [-1] * 11


def test_a_long_beginning_that_all_rows_share_does_not_make_them_alike(tmp_path):
    system = list(range(400))
    rows = [system + row for row in random_rows(200, length=30)]
    assert np.count_nonzero(near(tmp_path, [*rows, rows[5][:-1]]) >= 0) == 1


def test_near_duplicates_are_found_across_chunks_and_rows_too_short_are_like_nothing(tmp_path):
    rows = random_rows(30)
    again = [[*row[:-1], 4] for row in rows]
    found = near(tmp_path, [[9], *rows, [], [9, 9], *again], chunk=7)
    assert found.tolist() == [-1] * 33 + list(range(1, 31))


def test_rows_of_the_held_out_set_that_are_trained_on_are_paired_with_the_first_such_row():
    train = row_hashes(*flat([[1], [2], [], [3], [2]]))
    held_out = row_hashes(*flat([[5], [2], [], [3], [2]]))
    first, again = shared_rows(train, held_out)
    assert list(zip(first.tolist(), again.tolist(), strict=True)) == [(1, 1), (3, 3), (1, 4)]
