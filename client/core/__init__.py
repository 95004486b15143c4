"""What the client decides: requests, return links, questions to the broker. No sockets, clocks or threads."""
