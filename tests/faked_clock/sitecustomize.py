"""For processes under libfaketime 0.9.10, in which the system call that `time.sleep` makes fails (clock_nanosleep)."""

import select
import time


def sleep(seconds: float) -> None:
    """Sleeps as `time.sleep` does."""
    select.select([], [], [], seconds)


time.sleep = sleep
