"""The native kernels: `src/` in C++, and the Python side that packs weights and calls them. No torch here."""
