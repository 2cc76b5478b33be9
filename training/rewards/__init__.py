"""Rewards: functions that score samples, judges, and the process that computes them within limits. No torch."""
