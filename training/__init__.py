"""The training program and its configuration. It runs in separate processes and does not use the queue, the database or pages."""
