"""The page Data sets."""
