"""Certificates for one job, signed by its own authority, whose key never leaves this process's memory."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# The clocks of nodes differ.
_BACKDATED = datetime.timedelta(days=1)
# Longer than any job: a certificate is deleted with the folder that holds its key.
_LIFE = datetime.timedelta(days=3650)
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate, its key, and the certificate of its authority, all as PEM text."""

    certificate: str  # not secret
    authority: str
    key: str = field(repr=False)  # never shown by `repr`; stored only in files that no other user can read


class Authority:
    """Signs certificates for the members of one job. Its key is never written to disk, so nobody can sign later.

    From the same secret follows the same key, so whoever knows the secret can verify the certificates.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        curve = ec.SECP256R1()
        # One byte less than the curve's order has, so it is in the curve's range.
        number = None if secret is None else 1 + int.from_bytes(secret[:31])
        self._key = ec.generate_private_key(curve) if number is None else ec.derive_private_key(number, curve)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "laggard job authority")])
        self._key_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = self._builder(self._name, self._key.public_key()).add_extension(self._key_id, critical=False)
        for extension in (x509.BasicConstraints(ca=True, path_length=0), _usage(signs=True)):
            builder = builder.add_extension(extension, critical=True)
        # The root that its certificates are verified against, as PEM text
        self.certificate = _text(builder.sign(self._key, hashes.SHA256()))

    def issue(self, *names: str) -> Certificate:
        """Return a certificate for a server at the given addresses or host names, and at the loopback addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "laggard job member")])
        issuer_key_id = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._key_id)
        alternatives = x509.SubjectAlternativeName([_general(name) for name in dict.fromkeys((*names, *_LOCAL))])
        certificate = (
            self._builder(subject, key.public_key())
            .add_extension(alternatives, critical=False)
            .add_extension(issuer_key_id, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certificate(_text(certificate), self.certificate, secret.decode())

    def _builder(self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(now + _LIFE)
        )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
