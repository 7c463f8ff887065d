"""One module per op family; each function says how XLA spells an op."""
