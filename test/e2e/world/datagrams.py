"""UDP services that answer from the address they were asked at."""

import socket
import struct
import threading


IP_PKTINFO = 8  # of Linux; Python has no name for it


def serve(port, answer):
    """Calls answer(data, address) for each datagram to a port of any IPv4 address and
    sends back what it returns, if anything."""
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    peer.bind(("0.0.0.0", port))

    def run():
        while True:
            data, extra, _, source = peer.recvmsg(65535, socket.CMSG_SPACE(12))
            address = extra[0][2][8:12]  # in_pktinfo: interface, local address, destination
            reply = answer(data, socket.inet_ntoa(address))
            if reply is not None:
                info = struct.pack("=I4s4s", 0, address, bytes(4))
                peer.sendmsg([reply], [(socket.IPPROTO_IP, IP_PKTINFO, info)], 0, source)

    threading.Thread(target=run, daemon=True).start()
