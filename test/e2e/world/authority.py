"""The authority that certifies the world's servers, each name when it is asked for."""

import datetime
import ipaddress
import ssl
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PROTOCOLS = ["h2", "http/1.1"]


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


class Authority:
    """folder holds what it writes; its certificate is the file `bundle`."""

    def __init__(self, folder, name="World Test Authority"):
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=None),
                                       x509.KeyUsage(key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False,
                                                     key_encipherment=False, data_encipherment=False, key_agreement=False,
                                                     encipher_only=False, decipher_only=False))
        self.bundle = folder / "authority.pem"
        self.bundle.write_bytes(_pem(self._certificate))
        self._contexts = {}
        self._lock = threading.Lock()

    def _sign(self, name, key, *extensions):
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key)
                   .serial_number(x509.random_serial_number())
                   .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=30)))
        for extension in [*extensions, x509.SubjectKeyIdentifier.from_public_key(key),
                          x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())]:
            builder = builder.add_extension(extension, critical=isinstance(extension, (x509.BasicConstraints, x509.KeyUsage)))
        return builder.sign(self._key, hashes.SHA256())

    def context(self, name):
        """The TLS context of a server with this name or address."""
        with self._lock:
            if name not in self._contexts:
                self._contexts[name] = self._new_context(name)
            return self._contexts[name]

    def _new_context(self, name):
        try:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))])
        except ValueError:
            names = x509.SubjectAlternativeName([x509.DNSName(name)])
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]), key.public_key(), x509.BasicConstraints(ca=False, path_length=None), names)
        file = self.folder / f"server-{len(self._contexts)}.pem"
        file.write_bytes(_pem(certificate) + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        context.set_alpn_protocols(PROTOCOLS)
        return context

    def server_context(self, seen, context_for):
        """The context of a server that has whatever name its client says. seen is called
        with each name, None for a client that says none; context_for gives the context
        for a name."""

        def choose(connection, name, _):
            seen(name)
            if name:
                connection.context = context_for(name)

        context = self._new_context("203.0.113.1")
        context.sni_callback = choose
        return context
