"""Accounts as dictionaries: what each uses and may use at once, for `lathe user list` and REST. Read-only."""

from collections.abc import Sequence
from typing import Any

from worker.store import database, quotas
from worker.store.tables import Account


def listing(found: Sequence[Account]) -> list[dict[str, Any]]:
    """Accounts with their limits and what they use, without their tokens."""
    with database.read_everything() as session:
        uses = quotas.used(session=session, owners=[account.name for account in found])
    return [
        account.model_dump(exclude={"token_hash", "max_disk_bytes"}) | vars(uses[account.name]) for account in found
    ]
