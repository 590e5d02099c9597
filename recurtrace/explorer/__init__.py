"""A page to look at traces: served with a model behind it, or written as one file. Reads traces; no torch."""
