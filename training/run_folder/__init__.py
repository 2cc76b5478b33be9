"""The files of a run: their names, records, checkpoints, lineage, the model card and the upload to a hub. No torch."""
