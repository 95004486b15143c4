"""The `stagewire` command: arguments in, lines out; it must not decide what a library user needs too."""
