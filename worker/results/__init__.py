"""The results of ended runs: packed, downloaded, merged or converted on demand, and verified."""
