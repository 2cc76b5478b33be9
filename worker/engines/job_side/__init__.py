"""The part of the engine Slurm that runs in the job: the supervisor on the first node, and what starts the ranks on each node."""
