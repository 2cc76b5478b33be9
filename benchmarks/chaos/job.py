"""Runs the supervisor of a Slurm job for benchmarks.chaos; its ranks are started by job_node.py."""

import sys
from functools import partial

from worker.engines.job_side import supervisor

PROGRAM = "benchmarks.chaos.job"
"""Replaces worker.engines.slurm.jobs.supervisor_program."""

if __name__ == "__main__":
    launch = partial(supervisor.launch_step, program="benchmarks.chaos.job_node")
    sys.exit(supervisor.main(sys.argv[1:], launch=launch))
