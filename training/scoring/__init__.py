"""Scores of answers: paired comparisons, metrics of users, overlap of training and evaluation rows. No torch."""
