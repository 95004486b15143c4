"""The sockets of one pipeline epoch: hop, feed and return links."""
