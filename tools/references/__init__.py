"""Programs for developers: they write docs/*.md and the catalogues from the code and the installed libraries."""
