"""Runs a worker's rounds in a separate process, with the stand-in for the training program, until it is killed."""

import threading

from supervised import command

from worker.engines.local import starting
from worker.queue import reaper

starting.supervisor_command = command
reaper.ROUND_SECONDS = 0.1

if __name__ == "__main__":
    reaper.Reaper().start()
    threading.Event().wait()
