"""An object store with the files of runs and data sets (LATHE_STORE_URL), for which the data folder is a cache."""
