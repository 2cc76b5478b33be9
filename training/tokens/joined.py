"""The token stores of several data sets as one: rows are numbered through, set after set. Only numpy."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.tokens.order import Integers
from training.tokens.store import TokenStore


class JoinedStore:
    """Several stores with the interface of one. `ends` are the row numbers at which each store ends."""

    def __init__(self, stores: Sequence[TokenStore]) -> None:
        self.stores = tuple(stores)
        self.ends = np.cumsum([store.rows for store in stores])

    @property
    def rows(self) -> int:
        return int(self.ends[-1])

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The statistics that add up over the stores."""
        return {name: sum(int(store.facts[name]) for store in self.stores) for name in ("rows", "empty_rows")}

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        return np.concatenate([store.lengths for store in self.stores])

    @cached_property
    def first_trained(self) -> NDArray[np.int32]:
        return np.concatenate([store.first_trained for store in self.stores])

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        return np.concatenate([store.hashes for store in self.stores])

    def first_trained_with(self, *, train_on_prompt: bool) -> Integers:
        """As `TokenStore.first_trained_with`."""
        return np.concatenate([store.first_trained_with(train_on_prompt=train_on_prompt) for store in self.stores])

    def row(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """As `TokenStore.row`."""
        store, row = self._place(number)
        return store.row(row)

    def weights_of(self, number: int) -> NDArray[np.float32] | None:
        """As `TokenStore.weights_of`."""
        store, row = self._place(number)
        return store.weights_of(row)

    def _place(self, number: int) -> tuple[TokenStore, int]:
        """The store of a row, and the row's number in it."""
        place = int(np.searchsorted(self.ends, number, side="right"))
        return self.stores[place], number - (int(self.ends[place - 1]) if place else 0)


Store = TokenStore | JoinedStore


def joined(stores: Sequence[TokenStore]) -> Store:
    """The store of one data set, or those of several as one."""
    return stores[0] if len(stores) == 1 else JoinedStore(stores)


def ends_of(store: Store) -> tuple[int, ...]:
    """The row numbers at which each data set of a store ends."""
    return tuple(int(end) for end in store.ends) if isinstance(store, JoinedStore) else (store.rows,)
