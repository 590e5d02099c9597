"""Running a model: which block to loop, which depth to take, what each depth gives."""
