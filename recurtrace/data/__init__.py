"""Examples: where they come from, what is kept out of training, and how they become tensors."""
