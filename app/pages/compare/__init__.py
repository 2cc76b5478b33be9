"""The page Compare: any runs in one table, their settings side by side, their metrics in the same plots."""
