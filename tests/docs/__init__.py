"""Generators of the README's tables, and tests that the README is true."""
