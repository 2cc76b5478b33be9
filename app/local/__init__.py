"""`lathe up`: web server, worker and queue on this machine, with one command."""
