"""The page Run, with its charts."""
