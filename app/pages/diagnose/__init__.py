"""The page Diagnose."""
