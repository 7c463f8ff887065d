"""A package of another party, with an op of its own: what it needs to write, and nothing more.

``ops`` defines the op with NumPy alone; ``rules`` says how XLA computes it faster than its
decomposition does. An entry point of the group ``rlx.ops`` would name ``wavelets.ops``.
"""
