"""Two hosts or more on one machine: network namespaces joined by links that are as slow as wanted. Needs the right to make
namespaces (root, or CAP_NET_ADMIN and CAP_SYS_ADMIN)."""
import contextlib
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import processes  # noqa: E402  (tools/bench/peers)

PAYLOAD = 0.952  # of a rate of tc, the bytes of TCP: tc counts 66 bytes of headers in frames of 1514. A real wire adds 24 to each


class Link:
    """The namespaces, and between two of them a pair of virtual interfaces that tc shapes to the rate, in both directions; rate None: as
    fast as the kernel is. More than two have such a pair each to a router, which is one more namespace. Whatever happens, they are gone at
    the end; at SIGTERM, too."""

    def __init__(self, rate, hosts=2):
        self.rate = rate
        self.names = [f"ddp{os.getpid()}{chr(ord('a') + host)}" for host in range(hosts)]
        self.interfaces = [f"{name}-v" for name in self.names]
        self.router = f"ddp{os.getpid()}r" if hosts > 2 else None
        self.addresses = [f"10.210.{host}.2" if self.router else f"10.210.0.{1 + host}" for host in range(hosts)]
        self.told = contextlib.ExitStack()

    def __enter__(self):
        self.told.enter_context(processes.stopping_when_told())
        try:
            for name in self._all():
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            if self.router:
                self._connect_by_router()
            else:
                (a, b), (a_end, b_end) = self.names, self.interfaces
                ip("link", "add", a_end, "netns", a, "type", "veth", "peer", "name", b_end, "netns", b)
                for name, interface, address in zip(self.names, self.interfaces, self.addresses):
                    self.set_up(name, interface, address)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _all(self):
        return [*self.names, self.router] if self.router else self.names

    def _connect_by_router(self):
        run("ip", "netns", "exec", self.router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for name, interface, address in zip(self.names, self.interfaces, self.addresses):
            gateway = address[:-1] + "1"
            ip("link", "add", interface, "netns", name, "type", "veth", "peer", "name", interface, "netns", self.router)
            self.set_up(name, interface, address)
            self.set_up(self.router, interface, gateway)
            ip("-n", name, "route", "add", "default", "via", gateway)

    def set_up(self, name, interface, address):
        ip("-n", name, "address", "add", f"{address}/24", "dev", interface)
        ip("-n", name, "link", "set", interface, "up")
        if self.rate is not None:
            run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", interface, "root", "tbf", "rate", self.rate, "burst", "256kb",
                "latency", "50ms")

    def __exit__(self, *_):
        for name in self._all():
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)
        self.told.close()

    def prefix(self, host):
        """The words to put before a command that is to run on this host."""
        return ["ip", "netns", "exec", self.names[host]]


def why_impossible(rate="1gbit"):
    """None where a link can be made, else the reason."""
    try:
        with Link(rate):
            return None
    except (OSError, subprocess.CalledProcessError) as reason:
        return str(getattr(reason, "stderr", None) or reason).strip()


def skip_where_impossible():
    """Ends the program as a skipped test where no link can be made."""
    if reason := why_impossible():
        print(f"no namespaces: {reason}")
        sys.exit(77)


def run_on_hosts(link, command_of, timeout):
    """Runs command_of(host) on each host and returns what the first one wrote to stdout. RuntimeError if one fails."""
    jobs = []
    with contextlib.ExitStack() as started:
        started.enter_context(processes.stopping_when_told())
        for host in range(len(link.names)):
            jobs.append(subprocess.Popen([*link.prefix(host), *command_of(host)], stdout=subprocess.PIPE, text=True,
                                         start_new_session=True))
            started.callback(processes.end_session, jobs[-1])
        try:
            output = jobs[0].communicate(timeout=timeout)[0]
            for job in jobs[1:]:
                job.communicate(timeout=30)
        except subprocess.TimeoutExpired as late:
            raise RuntimeError(f"no end after {late.timeout:g} s: {' '.join(command_of(0))}") from None
    if any(process.returncode for process in jobs):
        raise RuntimeError(f"status {[process.returncode for process in jobs]} of {' '.join(command_of(0))}")
    return output


def run_job(link, ddprun, ranks_a_host, command, timeout, port=29400):
    """Runs a program under ddprun, with so many ranks on each host. Returns what the first host's wrote to stdout."""
    with tempfile.NamedTemporaryFile("w", prefix="ddp-link-") as secret:
        secret.write(secrets.token_hex(32) + "\n")
        secret.flush()
        return run_on_hosts(link, lambda host: [
            ddprun, "--nnodes", str(len(link.names)), "--node-rank", str(host), "--rdzv", f"{link.addresses[0]}:{port}",
            "--secret-file", secret.name, "-n", str(ranks_a_host), "--no-tag", *command], timeout)


def run(*command):
    subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)


def ip(*arguments):
    run("ip", *arguments)
