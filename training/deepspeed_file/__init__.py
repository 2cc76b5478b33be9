"""Reads a user's DeepSpeed JSON leniently and checks it key by key. Independent of RunConfig."""
