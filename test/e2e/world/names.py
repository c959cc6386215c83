"""The world's name server: it knows the zone that tests change, and what it was asked."""

import asyncio
import threading

import dnslib


class Names:
    """A zone. Each name, or "*.name" for all below, has a list of addresses, another name
    that it is an alias of, or a function that returns one of these for each question."""

    def __init__(self):
        self.records = {}
        self.ttl = 1
        self._asked = []  # as spelled
        self._lock = threading.Lock()

    def asked(self, part=""):
        """The questions that came, as (name in lower case, type); those whose name has part
        in it."""
        return [(name.lower(), kind) for name, kind in self.spelled() if part in name.lower()]

    def spelled(self):
        """The same, with the letters as they came."""
        with self._lock:
            return list(self._asked)

    def forget(self):
        with self._lock:
            self._asked.clear()

    def _find(self, name):
        if name in self.records:
            return self.records[name]
        parent = name
        while "." in parent:
            parent = parent.split(".", 1)[1]
            if f"*.{parent}" in self.records:
                return self.records[f"*.{parent}"]
        return None

    def answer(self, raw):
        """The answer to a message, in bytes; None to what is no question."""
        try:
            query = dnslib.DNSRecord.parse(raw)
            spelled, kind = str(query.q.qname).rstrip("."), dnslib.QTYPE[query.q.qtype]
        except Exception:  # whatever else came is recorded as it is
            with self._lock:
                self._asked.append((repr(raw), "?"))
            return None
        with self._lock:
            self._asked.append((spelled, kind))
        reply = query.reply()
        found, owner = self._find(spelled.lower()), query.q.qname
        for _ in range(8):
            if callable(found):
                found = found()
            if not isinstance(found, str):
                break
            reply.add_answer(dnslib.RR(owner, dnslib.QTYPE.CNAME, ttl=self.ttl, rdata=dnslib.CNAME(found)))
            owner, found = dnslib.DNSLabel(found), self._find(found)
        if found is None:
            reply.header.rcode = dnslib.RCODE.NXDOMAIN
            return reply.pack()
        for address in found:
            has = "AAAA" if ":" in address else "A"
            if kind == has:
                data = dnslib.AAAA(address) if has == "AAAA" else dnslib.A(address)
                reply.add_answer(dnslib.RR(owner, getattr(dnslib.QTYPE, has), ttl=self.ttl, rdata=data))
        return reply.pack()

    async def serve_stream(self, reader, writer):
        """Questions over TCP."""
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(2))
                if reply := self.answer(await reader.readexactly(size)):
                    writer.write(len(reply).to_bytes(2) + reply)
        except asyncio.IncompleteReadError:
            writer.close()
