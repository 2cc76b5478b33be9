"""The page New run."""
