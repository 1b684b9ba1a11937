"""What the router knows of each engine kind, the embedded engine, and the patches."""
