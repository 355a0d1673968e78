"""Addresses that a request to a URL of a tenant may lead to. Pure.

A tenant must not reach the network of the service through it: cloud metadata, databases, other machines.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

# networks with the address of another host inside: NAT64, and IPv4-compatible addresses
_WITH_IPV4: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))
# all others are reserved, local or translated, such as `::ffff:0:127.0.0.1` and NAT64 with a prefix of the network
_UNICAST: Final = IPv6Network("2000::/3")
# public by the tables of `ipaddress`, but answered inside of a cloud (the hosts of Azure and of Oracle), or relays
_INSIDE: Final = (IPv4Network("168.63.129.16/32"), IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"))
_LOW_32_BITS: Final = 2**32 - 1


def is_public(text: str) -> bool:
    """Return whether an address is one of the public internet: not private, local, shared, reserved or multicast.

    An IPv6 address that carries an IPv4 address is judged by that one too. A name, or other text, is not public.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(map(_is_public, (address, *_carried(address))))


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast and not any(address in network for network in _INSIDE)
    # a mapped or translated address is judged by the IPv4 address in it
    if address.ipv4_mapped is not None or any(address in network for network in _WITH_IPV4):
        return bool(_carried(address))
    return address in _UNICAST and address.is_global


def _carried(address: Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses in an IPv6 address."""
    if isinstance(address, IPv4Address):
        return ()
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if any(address in network for network in _WITH_IPV4):
        return (IPv4Address(int(address) & _LOW_32_BITS),)
    return ()
