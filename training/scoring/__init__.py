"""Scores of answers: what an evaluation asks for, intervals, paired comparisons, overlap with the training rows. No torch."""
