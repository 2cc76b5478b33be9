"""What a caller may change: their own runs and data sets; an admin and the user who runs the server, all."""

from app.access import callers
from training.errors import UserError
from worker.store.sight import ANOTHER
from worker.store.tables import LOCAL


class Forbidden(UserError):  # noqa: N818
    """The caller may not change another user's run or data set; the message names the owner if the caller sees them."""

    status = 403


def check_change(field: str, value: str, owner: str) -> None:
    """Checks that the caller may change what `owner` owns.

    Raises:
        Forbidden: they may not; `field` and `value` name the object, such as "run" and its id.
    """
    if callers.current().may_change(owner):
        return
    if callers.current().sees_all:
        name = "the user who runs the server" if owner == LOCAL else owner
        error = Forbidden(field, value, f"belongs to {name}.", f"Ask {name} or an admin to change it.")
    else:
        error = Forbidden(field, value, f"belongs to {ANOTHER}.", "Ask an admin to change it.")
    callers.refuse(error.problem)
    raise error


def check_admin(field: str, value: str | None, message: str = "concerns the whole installation.") -> None:
    """Checks that the caller may change what concerns all users; `message` says what that is.

    Raises:
        Forbidden: the caller is neither an admin nor the user who runs the server.
    """
    if callers.current().administers:
        return
    error = Forbidden(field, value, message, "Ask an admin.")
    callers.refuse(error.problem)
    raise error
