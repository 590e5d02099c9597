"""Stage 1 and its baselines: what is trained, on what, at which depth, and what it cost."""
