"""Bad inputs get one sentence: those that hypothesis finds, and those that were once answered otherwise."""
