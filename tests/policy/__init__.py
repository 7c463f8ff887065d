"""The project's conventions as tests."""
