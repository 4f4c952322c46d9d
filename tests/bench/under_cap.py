"""One command under a memory cap with a cold page cache, and the drive beside it.

Root, and cgroup v1's memory controller. It counts page cache too, so an engine that maps its file pays for it as one that
reads it."""
import json
import os
import resource
import subprocess
import sys
import time

GROUPS = "/sys/fs/cgroup/memory"


class Capped:
    """A memory cgroup of our own; `with` removes it again."""

    def __init__(self, limit):
        self.path = f"{GROUPS}/wisp-bench-{os.getpid()}"
        self.limit = limit

    def __enter__(self):
        try:
            os.mkdir(self.path)
        except OSError as e:
            sys.exit(f"{e}: --cap needs root and cgroup v1's memory controller at {GROUPS}")
        write(f"{self.path}/memory.limit_in_bytes", self.limit)
        return self

    def __exit__(self, *_):
        for _ in range(50):  # a group is busy until its last process is gone
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.1)
        print(f"{self.path} is left behind: still busy", file=sys.stderr)

    def enter(self):
        """Called in the child: it and all that it starts are inside."""
        write(f"{self.path}/cgroup.procs", os.getpid())


def device_bytes():
    """Bytes that devices read for our children that have ended and theirs, by the kernel's account (getrusage, 512 a block)."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock * 512


def write(path, value):
    with open(path, "w") as f:
        f.write(str(value))


def drop_caches():
    os.sync()
    write("/proc/sys/vm/drop_caches", 3)


def run_cold(command, limit, seconds, env=None):
    """Standard output of `command`, {wall_s, peak_bytes, device_bytes}. Ends the script where it fails or takes too long."""
    command = [str(c) for c in command]
    with Capped(limit) as group:
        drop_caches()
        bytes_before = device_bytes()
        began = time.monotonic()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                                 preexec_fn=group.enter)
        try:
            out, err = child.communicate(timeout=seconds)
        except BaseException as e:
            child.kill()
            child.communicate()
            if not isinstance(e, subprocess.TimeoutExpired):
                raise
            sys.exit(f"{' '.join(command)}: not done after {seconds} s; fewer --tokens, or a larger --limit-s")
        wall = time.monotonic() - began
        if child.returncode == -9:
            sys.exit(f"{' '.join(command)}: killed, most likely because it needs more than its cap of {limit} bytes\n{err[-2000:]}")
        if child.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit status {child.returncode}\n{err[-2000:]}")
        with open(f"{group.path}/memory.max_usage_in_bytes") as f:
            peak = int(f.read())
        return out, {"wall_s": wall, "peak_bytes": peak, "device_bytes": device_bytes() - bytes_before}


def direct_read(files, block, in_flight, seconds):
    """Bytes per second of fio: random direct reads of `block` bytes of `files`, about `in_flight` bytes at a time."""
    out = subprocess.run(["fio", "--name=direct", "--rw=randread", "--direct=1", "--readonly", "--ioengine=io_uring", f"--bs={block}",
                          f"--iodepth={max(1, round(in_flight / block))}", f"--filename={':'.join(files)}", "--time_based",
                          f"--runtime={seconds}", "--norandommap", "--output-format=json"], capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(f"fio: exit status {out.returncode}\n{out.stderr[-2000:]}")
    return json.loads(out.stdout)["jobs"][0]["read"]["bw_bytes"]
