"""What runs measure: metric rows, their rollups, and series thinned for a page."""
