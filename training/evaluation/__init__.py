"""Evaluations of a run on a data set: what is asked for, overlap with the training rows, metrics of users. No torch."""
