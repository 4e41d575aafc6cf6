"""Benches: they take minutes, and their times differ between machines, so they are no tests."""
