"""What the server pushes to open pages."""
