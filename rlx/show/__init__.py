"""Graphs and results for people to read."""
