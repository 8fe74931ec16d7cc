"""Free ports for the programs that a benchmark starts."""

import socket


def free_ports(n):
    """Ports of this host that are free now, all different: they are held together before they are released."""
    held = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports
