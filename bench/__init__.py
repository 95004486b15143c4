"""Measures Stagewire and llama.cpp side by side: `python -m bench`, `python -m bench.sweep`. Nothing imports it."""
