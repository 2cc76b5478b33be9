"""Evaluations of runs on data sets: submitted, started on a device of this machine, supervised, scored."""
