"""A jail for what Lathe runs on behalf of a caller: code of rewards, and readers of files. No torch."""
