"""The page of one data set."""
