"""A memory cgroup around one process."""
import os
import re
import subprocess

from wisp_e2e import WATCHDOG

V1 = "/sys/fs/cgroup/memory"


class Cgroup:
    """A memory cgroup (v1 or v2) of `limit` bytes; `path` is None where this machine lets us make none."""

    def __init__(self, limit):
        self.path = None
        if os.path.isdir(V1) and os.access(V1, os.W_OK):
            self.path, self.v1 = os.path.join(V1, f"wisp-test-{os.getpid()}-{limit}"), True
        elif os.path.exists("/sys/fs/cgroup/cgroup.controllers") and os.access("/sys/fs/cgroup", os.W_OK):
            self.path, self.v1 = f"/sys/fs/cgroup/wisp-test-{os.getpid()}-{limit}", False
        if self.path:
            try:
                os.mkdir(self.path)
                self.write("memory.limit_in_bytes" if self.v1 else "memory.max", limit)
            except OSError:
                self.path = None

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))

    def read(self, name):
        with open(os.path.join(self.path, name)) as f:
            return f.read()

    def peak(self):
        return int(self.read("memory.max_usage_in_bytes" if self.v1 else "memory.peak"))

    def oom_kills(self):
        text = self.read("memory.oom_control" if self.v1 else "memory.events")
        return int(re.search(r"oom_kill (\d+)", text).group(1))

    def enter(self):
        """For preexec_fn: the child's memory counts here."""
        if self.path:
            with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
                f.write(str(os.getpid()))

    def run(self, args):
        return subprocess.run(args, capture_output=True, text=True, timeout=WATCHDOG, preexec_fn=self.enter)

    def close(self):
        if self.path:
            os.rmdir(self.path)
