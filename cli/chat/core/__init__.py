"""The decisions of a chat: what a line asks for, what is kept, where lines break. No terminal, no files, no client."""
