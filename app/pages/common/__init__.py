"""Parts that several pages share: HTML, the form of a run, uploads and caches."""
