"""Admission, the pool, routing and recovery; it must not see a token or load a framework."""
