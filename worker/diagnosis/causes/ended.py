"""Causes of failure: processes ended from outside, by a limit or by a crash."""

from worker.diagnosis.cause import Cause, Kind, sign
from worker.diagnosis.conditions import mentions, without_exception

CAUSES = (
    Cause(
        "process_limit",
        "The user has reached the limit of processes or threads.",
        (
            sign(
                r"can't start new thread|BlockingIOError: \[Errno 11\] Resource temporarily unavailable|pthread_create failed",
                0.95,
            ),
        ),
        (
            "Raise the limit (ulimit -u, the container's pids limit), and lower OMP_NUM_THREADS and the number of DataLoader workers.",
        ),
    ),
    Cause(
        "time_limit",
        "The job reached its time limit, or the machine was preempted.",
        (
            sign(r"CANCELLED AT \S+ DUE TO (?P<reason>TIME LIMIT|PREEMPTION|NODE FAILURE)", 0.97),
            sign(r"DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime \d+ exceeded limit|[Pp]reempt(?:ed|ion notice)", 0.93),
            sign(
                r"SignalException: Process \d+ got signal: 15\b|Received signal 15|Received Signals\.SIGTERM",
                0.6,
                Kind.CONSEQUENCE,
                when=mentions(r"(?i)slurm|\bPBS|\blsf\b|preempt|kube|sagemaker|spot"),
            ),
        ),
        (
            "Save more often (save_steps) and resume from the last checkpoint; request more time, or train fewer steps per job.",
        ),
        changes={"save_steps": 0.1},
    ),
    Cause(
        "interrupted",
        "The training was interrupted with Ctrl-C.",
        (
            sign(
                r"^KeyboardInterrupt\b|\^C ?Traceback|Process \d+ got signal: 2\b|Received (?:2|Signals\.SIGINT) death signal",
                0.85,
                Kind.CONSEQUENCE,
                notice=True,
            ),
            sign(r"\^C(?:\n\S+@\S+[:$#].*)*\s*\Z", 0.8, Kind.CONSEQUENCE, notice=True, when=without_exception),
            sign(r"killed by signal: Interrupt\b", 0.85, Kind.CONSEQUENCE),
        ),
        ("Resume from the last checkpoint if that was not intended.",),
    ),
    Cause(
        "segmentation_fault",
        "A process crashed in compiled code.",
        (
            sign(r"^Fatal Python error: (?:Segmentation fault|Aborted|Bus error)", 0.9),
            sign(
                r"failed \(exitcode: -11\)|<Signals\.SIGSEGV: 11>|terminated with signal SIGSEGV|killed by signal: Segmentation fault|Signal 11 \(SIGSEGV\) received|exits with return code = -11|exit(?:ed with)? code -11\b",
                0.85,
            ),
            sign(r"Segmentation fault(?: \(core dumped\))?", 0.85),
            sign(r"killed by signal: (?:Aborted|Illegal instruction|Floating point exception)", 0.8),
        ),
        (
            "Rerun with PYTHONFAULTHANDLER=1, which prints where it crashed. Usually an extension was built for another torch: rebuild or remove it.",
        ),
    ),
    Cause(
        "terminal_closed",
        "The terminal or the connection from which the training was started was closed (SIGHUP).",
        (
            sign(
                r"Process \d+ got signal: 1\b|Received 1 death signal|closing signal SIGHUP|Signals\.SIGHUP|exitcode: -1\)|killed by signal: Hangup",
                0.9,
                Kind.CONSEQUENCE,
                notice=True,
            ),
        ),
        (
            "Start it so that it outlives the terminal: tmux, screen, nohup (with setsid, since torchrun handles SIGHUP itself), or a job.",
            "Resume from the last checkpoint.",
        ),
    ),
)
