"""Trees of messages, as OpenAssistant publishes them: each message has its text, its role and its replies."""

from typing import Any

from training.data.example import Row


def root_of(row: Row) -> Row | None:
    """The first message of a row that is a tree, or that has one in its column `prompt`; None for other rows."""
    prompt = row.get("prompt")
    root = prompt if isinstance(prompt, dict) else row
    is_tree = isinstance(root.get("replies"), list) and isinstance(root.get("text"), str) and "role" in root
    return root if is_tree else None


def best_path(root: Row) -> tuple[list[Row], int]:
    """The messages (role and content) from the root through the best reply of each, and the number of other replies beside them.

    The best reply has the lowest rank; of replies without ranks it is the first. Questions after the last answer are left out.
    """
    path: list[Row] = []
    others = 0
    message: Any = root
    while isinstance(message, dict):
        path.append({"role": message.get("role"), "content": message.get("text")})
        replies = [
            reply for reply in message.get("replies") or [] if isinstance(reply, dict) and not _is_deleted(reply)
        ]
        others += max(0, len(replies) - 1)
        message = min(replies, key=_rank, default=None)
    while path and path[-1]["role"] in ("prompter", "user", "human"):
        path.pop()
    return path, others


def _rank(reply: Row) -> float:
    rank = reply.get("rank")
    return float(rank) if isinstance(rank, (int, float)) else float("inf")


def _is_deleted(reply: Row) -> bool:
    return bool(reply.get("deleted")) or not isinstance(reply.get("text"), str)
