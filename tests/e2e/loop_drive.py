"""A drive of one's own: a file behind a loop device, with a file system on it. Needs root."""
import os
import subprocess
import tempfile

THROTTLE = "/sys/fs/cgroup/blkio"


def possible():
    """Whether this machine lets us make such drives, and slow them down."""
    return os.geteuid() == 0 and os.path.exists("/dev/loop-control") and os.access(THROTTLE, os.W_OK)


class LoopDrive:
    """`mib` MiB, read past the page cache, mounted at `path`. `group` throttles processes that enter it."""

    def __init__(self, folder, name, mib):
        self.image = os.path.join(folder, name + ".img")
        self.path = os.path.join(folder, name)
        os.makedirs(self.path, exist_ok=True)
        with open(self.image, "wb") as f:
            f.truncate(mib << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=0", self.image], check=True)
        self.device = subprocess.run(["losetup", "--direct-io=on", "--show", "-f", self.image], check=True,
                                     capture_output=True, text=True).stdout.strip()
        with open(f"/sys/block/{os.path.basename(self.device)}/dev") as f:
            self.number = f.read().strip()
        self.mounted = False
        self.mount()

    def mount(self, *options):
        """Mounts it, or changes how it is mounted (`remount,ro`)."""
        subprocess.run(["mount", *(["-o", ",".join(options)] if options else []), self.device, self.path], check=True)
        self.mounted = True

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", self.path], check=False)
        subprocess.run(["losetup", "-d", self.device], check=False)
        os.unlink(self.image)


class Throttle:
    """A blkio group (cgroup v1): what enters it reads `drives` no faster than it is told."""

    def __init__(self, drives):
        self.path = tempfile.mkdtemp(prefix="wisp-test-", dir=THROTTLE)
        self.drives = drives

    def limit(self, bytes_per_second):
        """0 lifts the limit."""
        for drive in self.drives:
            with open(os.path.join(self.path, "blkio.throttle.read_bps_device"), "w") as f:
                f.write(f"{drive.number} {bytes_per_second}")

    def enter(self):
        """For preexec_fn."""
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    def close(self):
        os.rmdir(self.path)
