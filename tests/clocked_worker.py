"""A worker's rounds as a process of its own, with the stand-in for the training program, until it is ended."""

import threading

from supervised import command

from worker import reaper, starting

starting.supervisor_command = command
reaper.ROUND_SECONDS = 0.1

if __name__ == "__main__":
    reaper.Reaper().start()
    threading.Event().wait()
