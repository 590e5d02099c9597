"""Which layers of a base to loop."""
