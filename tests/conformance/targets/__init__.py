"""Compilers of absent devices on the samples of every op: what they take, and what they refuse."""
