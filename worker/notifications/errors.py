"""Why a message could not be sent."""


class NotSent(Exception):  # noqa: N818
    """The message was not accepted. `final`: trying again is useless. `wait`: seconds that the receiver asked to wait."""

    def __init__(self, reason: str, *, final: bool = False, wait: float | None = None) -> None:
        super().__init__(reason)
        self.final, self.wait = final, wait
