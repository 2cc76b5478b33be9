"""Runs, logs and files of the local database or, with LATHE_SERVER, of another Lathe by REST: what several commands use."""
