"""Configuration files of other training programs, translated key by key into settings of a run. No torch."""
