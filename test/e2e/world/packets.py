"""What was sent to the world, seen on the link itself: whatever a sandbox or the
server sends out is here, answered or not. Of TCP it is the attempts to connect."""

import ipaddress
import socket
import struct
import threading

ETH_P_ALL = 3
OUTGOING = 4  # PACKET_OUTGOING
SO_RCVBUFFORCE = 33  # which Python does not name
SYN = 2
MARK = "198.51.100.254"  # an address that nothing else is sent to
PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6"}


class Packets:
    """Records protocol, destination and port of what comes in by the interface, each
    once."""

    def __init__(self, interface):
        self._seen = {}  # used as an ordered set
        self._lock = threading.Condition()
        self._marks = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        # Whole packets of both directions wait there; what has no room is not seen.
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self._socket.bind((interface, ETH_P_ALL))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            packet, (_, _, direction, *_) = self._socket.recvfrom(128)
            if direction != OUTGOING and (key := destination(packet)):
                with self._lock:
                    self._seen[key] = None
                    self._lock.notify_all()

    def _catch_up(self):
        """Waits until all that was sent before is recorded: sends a mark and waits for
        it, again when it may be lost. The calling thread is on the other end of the
        link."""
        self._marks = (self._marks + 1) % 40000
        mark = ("udp", MARK, 20000 + self._marks)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, self._lock:
            for _ in range(40):
                sender.sendto(b"mark", mark[1:])
                if self._lock.wait_for(lambda: mark in self._seen, 0.5):
                    return
        raise AssertionError("the link to the world is down")

    def seen(self, address=None, protocol=None, port=None):
        """The (protocol, address, port) that were sent to and fit what is given; port
        is 0 where the protocol has none."""
        self._catch_up()
        with self._lock:
            return [key for key in self._seen
                    if key[1] != MARK and (address is None or key[1] == address)
                    and (protocol is None or key[0] == protocol)
                    and (port is None or key[2] == port)]

    def forget(self):
        self._catch_up()
        with self._lock:
            self._seen.clear()


def destination(packet):
    """(protocol, address, port) of an IP packet; None of what belongs to the link, or to a
    TCP connection that is there already."""
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20:
        number, address, rest = packet[9], ipaddress.ip_address(packet[16:20]), packet[(packet[0] & 15) * 4:]
    elif version == 6 and len(packet) >= 40:
        number, address, rest = packet[6], ipaddress.ip_address(packet[24:40]), packet[40:]
        if address.is_link_local or address.is_multicast or number == 58 and rest[:1] in (b"\x87", b"\x88"):
            return None
    else:
        return None
    if number == 6 and (len(rest) < 14 or not rest[13] & SYN):
        return None
    port = struct.unpack("!H", rest[2:4])[0] if number in (6, 17) and len(rest) >= 4 else 0
    return PROTOCOLS.get(number, str(number)), str(address), port
