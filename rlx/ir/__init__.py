"""The intermediate representation, for authors of ops, passes and backends."""
