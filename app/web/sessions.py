"""The sessions of open pages: each belongs to a user, and a user has only so many at a time.

Gradio keeps something for each session until it is one of the ten thousand latest ones of all users: with every value that its page
shows, a user could fill the memory with a thousand requests.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gradio as gr

MOST = 256
"""Sessions of one user: of the oldest one the state is forgotten, as after a restart of the server."""


class Sessions:
    """Whose session each is. `pages` returns the application that keeps their states."""

    def __init__(self, pages: "Callable[[], gr.Blocks]") -> None:
        self._pages = pages
        self._owners: OrderedDict[str, str] = OrderedDict()  # by session, the latest last
        self._counts: Counter[str] = Counter()

    def owner(self, session: str, caller: str) -> str:
        """The user of a session, who is the first that names it."""
        if session not in self._owners:
            self._begin(session, caller)
        self._owners.move_to_end(session)
        return self._owners[session]

    def _begin(self, session: str, caller: str) -> None:
        if self._counts[caller] >= MOST:
            self._forget(next(known for known, user in self._owners.items() if user == caller))
        self._owners[session] = caller
        self._counts[caller] += 1

    def _forget(self, session: str) -> None:
        holder = self._pages().state_holder
        with holder.lock:
            holder.session_data.pop(session, None)
            holder.time_last_used.pop(session, None)
        self._counts[self._owners.pop(session)] -= 1
        self._counts += Counter()  # drops counts of 0


def keep_no_values() -> None:
    """Makes Gradio keep only the states of a session, and not what its components show, which links to it would need."""
    from gradio import state_holder

    usual = state_holder.SessionState
    if usual.__name__ == "WithoutValues":
        return

    class WithoutValues(usual):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.config_values.clear()

        def __setitem__(self, key: int, value: Any) -> None:
            super().__setitem__(key, value)
            self.config_values.clear()

        def _update_config(self, key: int) -> None:
            pass

        def _update_value_in_config(self, key: int, value: Any) -> None:
            pass

    state_holder.SessionState = WithoutValues  # type: ignore[misc]
