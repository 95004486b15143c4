"""Text for the client: tokenizer and chat template from a card; it must not open model files or sockets."""
