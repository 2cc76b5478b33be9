"""Held-out rows as questions, their scores, and answers to a sample of them during training."""
