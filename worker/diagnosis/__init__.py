"""Why a training run failed, from any log. Pure: no database, no torch."""
