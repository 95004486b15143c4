"""The KV blocks of one stage, the sequences that refer to them, and the prefix cache. numpy only."""
