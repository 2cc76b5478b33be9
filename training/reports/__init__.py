"""The reports of a rank: phases, metrics, its position within a step, its memory, and out-of-memory errors."""
