"""Starts and places the processes of a cluster; it knows their commands, not their insides."""
