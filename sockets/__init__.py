"""What every process does with its sockets: send without blocking, drain in bounds, wait exactly, simulate a network.

zmq is imported here; no decision about messages is made here.
"""
