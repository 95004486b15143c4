"""The SDK, sync and asyncio, in token ids; it must not need a tokenizer, a model file or a framework."""
