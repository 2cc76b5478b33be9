"""The page New sweep: the settings that vary, and the plan before the start."""
