"""A log: its lines, and the events that they report."""

from functools import cached_property

from worker.diagnosis.log_text import LogText
from worker.diagnosis.timeline import Timeline


class Log(LogText):
    """A log with its timeline."""

    @cached_property
    def timeline(self) -> Timeline:
        """The events of the log, in order."""
        return Timeline(self)
