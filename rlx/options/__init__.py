"""Options of sessions and compiles; the only readers of ``RLX_*`` variables."""
