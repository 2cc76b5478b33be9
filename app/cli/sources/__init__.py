"""What commands read and change: in the local database or, with LATHE_SERVER, on another Lathe by REST."""
