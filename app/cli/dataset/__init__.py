"""`lathe dataset`: adding, checking and tokenizing data sets."""
