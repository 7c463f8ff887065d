"""Tests of RLX-XLA."""
