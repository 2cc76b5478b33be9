"""Accounts as dictionaries: what each uses and may use at once, for `lathe user list` and REST. Read-only."""

from collections.abc import Sequence
from typing import Any

from worker import disk_quota
from worker.store import database, quotas
from worker.store.tables import Account


def listing(found: Sequence[Account]) -> list[dict[str, Any]]:
    """Accounts with their limits and what they use, without their tokens; `disk_bytes` is None where it has no limit."""
    with database.read_everything() as session:
        uses = quotas.used(session=session, owners=[account.name for account in found])
    return [account.model_dump(exclude={"token_hash"}) | vars(uses[account.name]) | _disk(account) for account in found]


def _disk(account: Account) -> dict[str, int | None]:
    limited = account.max_disk_bytes is not None
    return {"disk_bytes": disk_quota.measured(account.name).used if limited else None}
