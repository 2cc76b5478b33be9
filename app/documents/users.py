"""Accounts: what each uses and may use at once; and with whom things are shared."""

from collections.abc import Sequence

from pydantic import Field

from app.documents import Document, columns
from worker import disk_quota
from worker.store import database, quotas
from worker.store.tables import Account


class AccountUse(Document):
    """What an account uses and may use at once; a limit is null if there is none, `disk_bytes` where it was not measured."""

    name: str
    devices: int
    max_devices: int | None
    waiting: int
    max_waiting: int | None
    disk_bytes: int | None
    max_disk_bytes: int | None


@columns(Account, ("admin", "created_at"))
class AccountAnswer(AccountUse):
    """A user with their own token, what they use and may use at once. The disk use is measured where it has a limit."""


class AccountList(Document):
    """The accounts by name, and how many there are in all."""

    users: list[AccountAnswer]
    total: int


class NewToken(Document):
    """The token of an account, shown only this once."""

    name: str
    token: str


class SharedWith(Document):
    """The users with whom it is shared, by name; `*` stands for all, `link:...` for a link."""

    users: list[str]


class SharedLink(SharedWith):
    """A new link; its path is shown only once."""

    path: str = Field(description="of the link on this server")


def answers(accounts: Sequence[Account]) -> list[AccountAnswer]:
    """The accounts with what they use; their disk use is measured now."""
    with database.read_everything() as session:
        uses = quotas.used(session=session, owners=[account.name for account in accounts])
    return [
        AccountAnswer(
            **account.model_dump(exclude={"token_hash"}), **vars(uses[account.name]), disk_bytes=_disk(account)
        )
        for account in accounts
    ]


def _disk(account: Account) -> int | None:
    return disk_quota.measured(account.name).used if account.max_disk_bytes is not None else None
