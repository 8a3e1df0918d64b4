"""Opens SSH connections, through jump hosts if needed, and runs programs over them.

All calls block, so use a thread for each host. Programs are lists of arguments. They are quoted in
a single place, where SSH needs a shell line.
"""

from __future__ import annotations

import shlex
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import paramiko

from fleet_controller.core.inventory import Ssh
from fleet_controller.ssh.keyring import Keyring
from fleet_controller.ssh.known_hosts import KnownHosts, display_name
from fleet_protos.errors import ConfigError, FleetError, HostUnreachable

KEEPALIVE_S = 15
WINDOW_BYTES = 32 << 20  # a long round trip must not slow down copying
PACKET_BYTES = 32_768
SILENCE_TIMEOUT_S = 120.0
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The exit code and the output of a program. The code is -1 if it is unknown."""

    code: int
    out: bytes
    error: bytes


class SshConnection:
    """An open SSH connection to one machine. Closing the connection ends the programs that run over
    it.
    """

    def __init__(self, ssh: Ssh, transport: paramiko.Transport, stack: ExitStack) -> None:
        self._ssh = ssh
        self._transport = transport
        self._stack = stack

    @classmethod
    def open(cls, ssh: Ssh, keyring: Keyring) -> SshConnection:
        """Connect to a machine, through all jump hosts of `ssh.jumps` in order.

        Raises HostUnreachable, HostKeyRefused. Raises ConfigError if no key is accepted.
        """
        with ExitStack() as stack:
            transport: paramiko.Transport | None = None
            for hop in (*ssh.jumps, ssh):
                transport = _connect_hop(hop, _open_socket(hop, transport), keyring)
                stack.callback(transport.close)
            assert transport is not None
            return cls(ssh, transport, stack.pop_all())

    def run(
        self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 60.0
    ) -> ProgramResult:
        """Run a program to its end.

        Raises HostUnreachable if the connection breaks or nothing arrives for `timeout_s` seconds.
        """
        with self.start(argv, timeout_s) as pipe:
            pipe.send(stdin)
            pipe.end_input()
            return pipe.read_to_end()

    def start(self, argv: Sequence[str], timeout_s: float = SILENCE_TIMEOUT_S) -> RemoteProgram:
        """Start a program. `timeout_s` is the longest time in seconds without output from the
        program.

        Raises HostUnreachable if the connection is broken.
        """
        try:
            channel = self._transport.open_session(timeout=self._ssh.connect_timeout_s)
            channel.settimeout(timeout_s)
            channel.exec_command(shlex.join(argv))
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._broken_error(error) from error
        return RemoteProgram(channel, display_name(self._ssh))

    def open_channel(self, address: str, port: int) -> paramiko.Channel:
        """Open a connection from the remote machine to an address. Raises HostUnreachable if
        nothing answers there.
        """
        try:
            return self._transport.open_channel(
                "direct-tcpip",
                (address, port),
                ("127.0.0.1", 0),
                timeout=self._ssh.connect_timeout_s,
            )
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise HostUnreachable(
                f"{display_name(self._ssh)}: nothing answers at {address} port {port} there:"
                f" {error}"
            ) from error

    @property
    def is_open(self) -> bool:
        """Return whether neither side has ended the connection."""
        return self._transport.is_active()

    def close(self) -> None:
        """Close the connections to this machine and to the jump hosts."""
        self._stack.close()

    def __enter__(self) -> SshConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _broken_error(self, error: Exception) -> HostUnreachable:
        return HostUnreachable(
            f"{display_name(self._ssh)}: the SSH connection broke: {error or type(error).__name__}",
            "run the command again; it continues where it stopped",
        )


class RemoteProgram:
    """A running program on another machine. Its standard error is collected, up to 1 MiB."""

    def __init__(self, channel: paramiko.Channel, host: str) -> None:
        self._channel = channel
        self._host = host
        self._file = channel.makefile("rb", 1 << 16)
        self._errors = bytearray()
        self._reader = threading.Thread(target=self._read_errors, daemon=True, name="ssh-errors")
        self._reader.start()

    def send(self, content: bytes) -> None:
        """Write to the program's standard input. Raises HostUnreachable with the program's last
        error lines.
        """
        try:
            self._channel.sendall(content)
        except OSError as error:
            raise self._ended_error(error) from error

    def end_input(self) -> None:
        """Close the program's standard input."""
        self._channel.shutdown_write()

    def read_line(self) -> bytes:
        """Read one line of output.

        Raises HostUnreachable if the program ends instead, or sends nothing for too long.
        """
        try:
            line: bytes = self._file.readline()
        except OSError as error:
            raise self._ended_error(error) from error
        if not line.endswith(b"\n"):
            raise self._ended_error(None)
        return line

    def read_to_end(self) -> ProgramResult:
        """Read all further output and wait for the program's end."""
        try:
            out: bytes = self._file.read()
        except OSError as error:
            raise self._ended_error(error) from error
        code = self._channel.recv_exit_status() if self._channel.status_event.wait(5.0) else -1
        self._reader.join(5.0)
        return ProgramResult(code, out, bytes(self._errors))

    def close(self) -> None:
        """Close the channel, which ends the program."""
        self._channel.close()
        self._reader.join(5.0)

    def __enter__(self) -> RemoteProgram:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_errors(self) -> None:
        try:
            while chunk := self._channel.recv_stderr(1 << 16):
                self._errors += chunk[: max(0, (1 << 20) - len(self._errors))]
        except OSError:
            return  # a timeout or a lost connection; reading standard output reports it

    def _ended_error(self, error: Exception | None) -> HostUnreachable:
        self._channel.close()
        self._reader.join(1.0)
        errors = bytes(self._errors).decode(errors="replace").strip().splitlines()[-3:]
        ended = f"the connection ended: {error}" if error and str(error) else "the connection ended"
        what = "no answer in time" if isinstance(error, TimeoutError) else ended
        return HostUnreachable(
            f"{self._host}: {what}{': ' + ' / '.join(errors) if errors else ''}",
            "run the command again; it continues where it stopped",
        )


def _open_socket(hop: Ssh, through: paramiko.Transport | None) -> socket.socket | paramiko.Channel:
    try:
        if through is not None:
            return through.open_channel(
                "direct-tcpip",
                (hop.address, hop.port),
                ("127.0.0.1", 0),
                timeout=hop.connect_timeout_s,
            )
        connection = socket.create_connection((hop.address, hop.port), hop.connect_timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    except (OSError, EOFError, paramiko.SSHException) as error:
        host = display_name(hop)
        reason = (
            "no answer"
            if isinstance(error, TimeoutError)
            else getattr(error, "strerror", None) or str(error)
        )
        way = " from the jump host" if through is not None else ""
        raise HostUnreachable(
            f"cannot reach {host} by SSH{way}: {reason}",
            "check that the host is up, that `address` and `port` in the fleet file are right,"
            " and that no firewall blocks the connection",
        ) from error


def _connect_hop(
    hop: Ssh, connection: socket.socket | paramiko.Channel, keyring: Keyring
) -> paramiko.Transport:
    known = KnownHosts.read(hop.known_hosts)
    transport = paramiko.Transport(
        connection, default_window_size=WINDOW_BYTES, default_max_packet_size=PACKET_BYTES
    )
    try:
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = (
            hop.connect_timeout_s
        )
        options = transport.get_security_options()
        options.ciphers = [cipher for cipher in CIPHERS if cipher in options.ciphers]
        options.key_types = _order_key_types(options.key_types, known.key_types(hop))
        transport.start_client(timeout=hop.connect_timeout_s)
        known.check(hop, transport.get_remote_server_key())
        transport.set_keepalive(KEEPALIVE_S)
        _authenticate(hop, transport, keyring)
    except (paramiko.SSHException, OSError, EOFError) as error:
        transport.close()
        raise HostUnreachable(
            f"{display_name(hop)}: SSH failed: {error or 'the host closed the connection'}",
            "check that sshd is running on the host; the log of sshd may say more",
        ) from error
    except FleetError:
        transport.close()
        raise
    return transport


def _order_key_types(offered: Sequence[str], known: Sequence[str]) -> list[str]:
    """Sort the host key types. As in OpenSSH, types for which a key of the host is known come
    first.
    """
    names = {f"rsa-sha2-{bits}" for bits in (256, 512)} if "ssh-rsa" in known else set()
    return sorted(offered, key=lambda kind: kind not in known and kind not in names)


def _authenticate(hop: Ssh, transport: paramiko.Transport, keyring: Keyring) -> None:
    tried = []
    for origin, key in keyring.keys(hop):
        tried.append(origin)
        try:
            if not transport.auth_publickey(hop.user, key):
                return
            raise ConfigError(
                f"{display_name(hop)} requires more than a key from user {hop.user}",
                "allow this user to log in with a key alone",
            )
        except paramiko.BadAuthenticationType as error:
            raise ConfigError(
                f"{display_name(hop)} accepts no keys, only {', '.join(error.allowed_types)}",
                "allow PubkeyAuthentication on the host; benchfleet cannot use passwords",
            ) from error
        except paramiko.AuthenticationException:
            if not transport.is_active():
                break
    used = (
        f"refused {', '.join(dict.fromkeys(tried))}"
        if tried
        else "no key was offered, because ssh-agent has no key and there is no key file"
    )
    raise ConfigError(
        f"{display_name(hop)} does not let user {hop.user} log in: {used}",
        f"run ssh-copy-id {hop.user}@{hop.address}, or set the right `identity` and `user` in the"
        " fleet file",
    )
