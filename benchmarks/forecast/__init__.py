"""`python -m benchmarks.forecast`: memory forecasts compared with counted runs and other estimators."""
