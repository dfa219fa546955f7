"""Who counts as one client."""

import ipaddress

IPV6_PREFIX = 64


def client_key(address):
    """The name under which requests of an address are counted."""
    text = address.strip()
    try:
        parsed = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text.lower()  # a name, such as one of a Unix socket's peer
    if parsed.version == 6:
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False))
    return str(parsed)
